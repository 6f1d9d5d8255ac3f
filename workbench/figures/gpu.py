"""Figures of GPUs: all of them side by side on the page Live, one of them in detail on the page Runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from profilers.analysis import machine
from profilers.gpu import rank_gpus
from profilers.records.schema import Event, live_panels
from workbench.figures.base import SINCE_START, draw_panels, empty, figure, name_panels
from workbench.figures.host import line_of_readings, panel_series
from workbench.figures.palette import NEUTRAL, REASON_COLORS, line_look
from workbench.figures.steps import GIB, Line
from workbench.records.columns import Array, Columns

#: Stretches of throttling closer together than this share of the time shown are drawn as one.
_GAP_SHARE = 1 / 200
_ACTIVITY = {
    "SMs active": "sm_active_fraction",
    "warps on SMs": "sm_occupancy_fraction",
    "tensor cores": "tensor_active_fraction",
    "memory bandwidth": "dram_active_fraction",
}
_PCIE = {"PCIe sent": "pcie_tx_bytes_per_second", "PCIe received": "pcie_rx_bytes_per_second"}
#: Links between GPUs: NVLink's fields hold xGMI's counters on AMD.
_LINKS = {"sent": "nvlink_tx_bytes", "received": "nvlink_rx_bytes"}


def live_label() -> str:
    """What the panels show, for readers of the screen."""
    return name_panels(live_panels("gpu").values(), "each GPU")


def live(columns: Columns, start_unix: float, revision: str = "") -> go.Figure:
    """The panels of the page Live, with a line for each GPU over the seconds since ``start_unix``."""
    series = panel_series("gpu", columns, start_unix)
    return draw_panels("GPUs", list(live_panels("gpu").values()), series, revision)


class Source(NamedTuple):
    """Who read a host's GPUs: vendor, library, how it calls links between GPUs, and product names as "8 x NAME"."""

    vendor: str = "NVIDIA"
    library: str = "NVML"
    links: str = "NVLink"
    names: str = ""


NVML = Source()


class ThrottleSpan(NamedTuple):
    """From when to when, in seconds since the start, a reason held the clocks down."""

    reason: str
    begin: float
    end: float


class GpuDetail(NamedTuple):
    """Lines of one GPU over the seconds since the start: percent, GiB, W, degrees Celsius, MHz and GB/s.

    Limits are lines too, named "limit", "slowdown" and "highest clock".
    """

    activity: list[Line]
    memory: list[Line]
    power: list[Line]
    temperature: list[Line]
    clocks: list[Line]
    throttled: list[ThrottleSpan]
    traffic: list[Line]


def gpus(columns: Columns) -> list[int]:
    """The GPUs that were sampled."""
    return [int(gpu) for gpu in np.unique(columns.get("gpu", np.empty(0)))]


def source(events: Iterable[Event]) -> Source:
    """From the events of a host's sampler; those of before there were two vendors are NVIDIA's."""
    identities = [event.data for event in events if event.kind == rank_gpus.EVENT]
    if not identities:
        return NVML
    facts = {
        name: str(identities[-1][name]) for name in ("vendor", "library", "links") if name in identities[-1]
    }
    counts = Counter(str(gpu.get("name") or "unknown GPU") for gpu in identities[-1].get("gpus", ()))
    return Source(**facts, names=", ".join(f"{count} x {name}" for name, count in counts.items()))


def detail(columns: Columns, gpu: int, start_unix: float, read_by: Source = NVML) -> GpuDetail:
    """All readings of one GPU; a quantity that it does not give has no line."""
    mask = columns["gpu"] == gpu
    seconds = columns["time_unix"][mask] - start_unix

    def lines(fields_of_names: dict[str, str], factor: float = 1.0) -> list[Line]:
        traces = [
            line_of_readings(name, seconds, columns[field][mask] * factor)
            for name, field in fields_of_names.items()
        ]
        return [trace for trace in traces if trace.x]

    return GpuDetail(
        activity=lines({f"any activity ({read_by.library})": "utilization_fraction"} | _ACTIVITY, 100),
        memory=lines({"used": "memory_used_bytes", "total": "memory_total_bytes"}, 1 / GIB),
        power=lines({"power": "power_watts", "limit": "power_limit_watts"}),
        temperature=lines({"temperature": "temperature_celsius", "slowdown": "slowdown_celsius"}),
        clocks=lines(
            {"SM": "sm_clock_mhz", "memory": "memory_clock_mhz", "highest clock": "sm_clock_max_mhz"}
        ),
        throttled=throttled_spans(seconds, columns["throttle_reasons"][mask]),
        traffic=lines(_PCIE, 1e-9)
        + [trace for trace in _links(columns, mask, seconds, read_by.links) if trace.x],
    )


def throttled_spans(seconds: Array, masks: Array) -> list[ThrottleSpan]:
    """Stretches in which something other than a choice held the clocks down, by reason and time.

    A reading holds until the next one; the last for as long as the one before.
    """
    if not len(seconds):
        return []
    steps = np.diff(seconds)
    ends = np.append(seconds[1:], seconds[-1] + (steps[-1] if len(steps) else 0.0))
    gap = (seconds[-1] - seconds[0]) * _GAP_SHARE
    spans_of_reasons: dict[str, list[ThrottleSpan]] = {}
    for begin, end, mask in zip(seconds, ends, masks, strict=True):
        for reason in machine.slows(int(mask)) if np.isfinite(mask) else ():
            spans = spans_of_reasons.setdefault(reason, [])
            is_continued = bool(spans) and begin - spans[-1].end <= gap
            first = spans.pop().begin if is_continued else float(begin)
            spans.append(ThrottleSpan(reason, first, float(end)))
    return [span for spans in spans_of_reasons.values() for span in spans]


def _links(columns: Columns, mask: Array, seconds: Array, links: str) -> list[Line]:
    """Their rates as the driver tells them, else from its counters."""
    lines = []
    for way, counter in _LINKS.items():
        name = f"{links} {way}"
        rates = columns[f"{counter}_per_second"][mask]
        if np.isfinite(rates).any():
            lines.append(line_of_readings(name, seconds, rates * 1e-9))
            continue
        counts = columns[counter][mask]
        finite = np.isfinite(counts)
        increases, durations = np.diff(counts[finite]), np.diff(seconds[finite])
        rising = (increases >= 0) & (durations > 0)
        lines.append(
            line_of_readings(name, seconds[finite][1:][rising], increases[rising] / durations[rising] * 1e-9)
        )
    return lines


HEIGHT = 250
#: Lines that say how far a quantity can go.
LIMITS = frozenset({"total", "limit", "slowdown", "highest clock"})


def activity(detail: GpuDetail, revision: str = "") -> go.Figure:
    """How busy the GPU and its parts were."""
    drawing = _draw_lines("Activity", "%", detail.activity, "%{y:.0f} %", revision)
    return drawing.update_yaxes(range=[0, 105]) if detail.activity else drawing


def power(detail: GpuDetail, revision: str = "") -> go.Figure:
    """Power, and the limit that the driver keeps."""
    return _draw_lines("Power", "W", detail.power, "%{y:,.0f} W", revision)


def memory(detail: GpuDetail, revision: str = "") -> go.Figure:
    """Memory in use, by all processes."""
    return _draw_lines("Memory of the GPU", "GiB", detail.memory, "%{y:,.1f} GiB", revision)


def temperature(detail: GpuDetail, revision: str = "") -> go.Figure:
    """Temperature, and where the hardware slows down."""
    return _draw_lines("Temperature", "°C", detail.temperature, "%{y:.0f} °C", revision)


def clocks(detail: GpuDetail, revision: str = "") -> go.Figure:
    """Clocks, with the stretches in which something held them down."""
    drawing = _draw_lines("Clocks", "MHz", detail.clocks, "%{y:,.0f} MHz", revision)
    reasons = list(dict.fromkeys(span.reason for span in detail.throttled))
    for number, reason in enumerate(reasons):
        color = REASON_COLORS[number % len(REASON_COLORS)]
        _shade(drawing, [span for span in detail.throttled if span.reason == reason], color)
    return drawing


def traffic(detail: GpuDetail, revision: str = "") -> go.Figure:
    """What went over PCIe and the links between GPUs."""
    return _draw_lines("Traffic", "GB/s", detail.traffic, "%{y:,.3g} GB/s", revision)


def _draw_lines(title: str, unit: str, lines: Sequence[Line], hover: str, revision: str) -> go.Figure:
    drawing = figure(title, SINCE_START, unit, revision, HEIGHT)
    if not lines:
        return empty(drawing, "this GPU or its driver gives no reading")
    for number, trace in enumerate(lines):
        look: dict[str, Any] = {"color": NEUTRAL, "width": 1.2, "dash": "dash"}
        if trace.name not in LIMITS:
            look = line_look(number)._asdict() | {"width": 1.6}
        mode = "lines" if len(trace.x) > 1 else "markers"
        drawing.add_scatter(
            x=trace.x, y=trace.y, name=trace.name, mode=mode, line=look, hovertemplate=hover, showlegend=True
        )
    return drawing.update_xaxes(rangemode="nonnegative").update_yaxes(rangemode="tozero")


def _shade(drawing: go.Figure, spans: Sequence[ThrottleSpan], color: str) -> None:
    for span in spans:
        drawing.add_vrect(
            x0=span.begin, x1=span.end, fillcolor=color, opacity=0.22, line_width=0, layer="below"
        )
    square = {"symbol": "square", "size": 11, "color": color, "opacity": 0.45}
    drawing.add_scatter(
        x=[None], y=[None], name=spans[0].reason, mode="markers", marker=square, hoverinfo="skip"
    )
