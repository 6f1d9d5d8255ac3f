"""Drawing the panel of one GPU. No numbers are made here."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from workbench.figures import LINE_COLORS, NEUTRAL, SINCE_START, empty, figure
from workbench.gpu_series import GpuDetail, Throttled
from workbench.series import Line

HEIGHT = 250
#: Lines that say how far a quantity can go.
LIMITS = frozenset({"total", "limit", "slowdown", "highest clock"})
#: Okabe and Ito's warm colours, one for each reason in the order they come.
THROTTLE_COLORS = ("#D55E00", "#E69F00", "#CC79A7", "#F0E442")


def activity(detail: GpuDetail, revision: str = "") -> go.Figure:
    """How busy the GPU and its parts were."""
    drawing = _drawn("Activity", "%", detail.activity, "%{y:.0f} %", revision)
    return drawing.update_yaxes(range=[0, 105]) if detail.activity else drawing


def power(detail: GpuDetail, revision: str = "") -> go.Figure:
    """Power, and the limit that the driver keeps."""
    return _drawn("Power", "W", detail.power, "%{y:,.0f} W", revision)


def memory(detail: GpuDetail, revision: str = "") -> go.Figure:
    """Memory in use, by all processes."""
    return _drawn("Memory of the GPU", "GiB", detail.memory, "%{y:,.1f} GiB", revision)


def temperature(detail: GpuDetail, revision: str = "") -> go.Figure:
    """Temperature, and where the hardware slows down."""
    return _drawn("Temperature", "°C", detail.temperature, "%{y:.0f} °C", revision)


def clocks(detail: GpuDetail, revision: str = "") -> go.Figure:
    """Clocks, with the stretches in which something held them down."""
    drawing = _drawn("Clocks", "MHz", detail.clocks, "%{y:,.0f} MHz", revision)
    reasons = list(dict.fromkeys(span.reason for span in detail.throttled))
    for number, reason in enumerate(reasons):
        color = THROTTLE_COLORS[number % len(THROTTLE_COLORS)]
        _shade(drawing, [span for span in detail.throttled if span.reason == reason], color)
    return drawing


def traffic(detail: GpuDetail, revision: str = "") -> go.Figure:
    """What went over PCIe and the links between GPUs."""
    return _drawn("Traffic", "GB/s", detail.traffic, "%{y:,.3g} GB/s", revision)


def _drawn(title: str, unit: str, lines: Sequence[Line], hover: str, revision: str) -> go.Figure:
    drawing = figure(title, SINCE_START, unit, revision, HEIGHT)
    if not lines:
        return empty(drawing, "this GPU or its driver gives no reading")
    for number, trace in enumerate(lines):
        limit = trace.name in LIMITS
        look = (
            {"color": NEUTRAL, "width": 1.2, "dash": "dash"}
            if limit
            else {"color": LINE_COLORS[number % len(LINE_COLORS)], "width": 1.6}
        )
        mode = "lines" if len(trace.x) > 1 else "markers"
        drawing.add_scatter(
            x=trace.x, y=trace.y, name=trace.name, mode=mode, line=look, hovertemplate=hover, showlegend=True
        )
    return drawing.update_xaxes(rangemode="nonnegative").update_yaxes(rangemode="tozero")


def _shade(drawing: go.Figure, spans: Sequence[Throttled], color: str) -> None:
    for span in spans:
        drawing.add_vrect(
            x0=span.begin, x1=span.end, fillcolor=color, opacity=0.22, line_width=0, layer="below"
        )
    square = {"symbol": "square", "size": 11, "color": color, "opacity": 0.45}
    drawing.add_scatter(
        x=[None], y=[None], name=spans[0].reason, mode="markers", marker=square, hoverinfo="skip"
    )
