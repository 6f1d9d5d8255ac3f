"""Drawing of the host and of memory: each function turns the numbers of one series into a Plotly figure."""

from __future__ import annotations

import plotly.graph_objects as go

from workbench.figures import (
    LINE_COLORS,
    NEUTRAL,
    PHASE_COLORS,
    SINCE_START,
    draw_lines,
    empty,
    faded,
    figure,
    panels,
)
from workbench.host_series import OTHERS, CoreSeries, RateSeries, ShareSeries
from workbench.memory_series import MemorySeries

_CORE_ROW = 14
#: Room above the highest peak for what is written there.
_HEADROOM = 1.2
_DISK_COLORS = (PHASE_COLORS["data"], PHASE_COLORS["bubble"])
_HEAT = [[0.0, "rgba(68,119,170,0.06)"], [0.5, "#66A3D9"], [1.0, "#D55E00"]]


def cores(series: CoreSeries, revision: str = "") -> go.Figure:
    """A heat map: time to the right, cores downwards."""
    height = min(620, 130 + _CORE_ROW * max(6, len(series.cores)))
    drawing = figure("Processor cores", SINCE_START, "core", revision, height)
    if not series.cores:
        return empty(drawing, "no reading of the cores")
    drawing.add_heatmap(
        x=series.seconds,
        y=series.cores,
        z=series.percent,
        zmin=0,
        zmax=100,
        colorscale=_HEAT,
        colorbar={"title": {"text": "% busy"}, "thickness": 12},
        hovertemplate="core %{y}, %{x:,.1f} s: %{z:.0f} %<extra></extra>",
    )
    few = {"dtick": 1} if len(series.cores) <= 16 else {}
    drawing.update_yaxes(autorange="reversed", **few)
    return drawing.update_layout(hovermode="closest", margin_t=40)


def shares(series: ShareSeries, revision: str = "") -> go.Figure:
    """Stacked areas: what part of all cores each rank had."""
    drawing = figure("Processor time by rank", SINCE_START, "% of all cores", revision)
    if not series.lines:
        return empty(drawing, "no reading of the ranks' processes")
    for number, trace in enumerate(series.lines):
        color = NEUTRAL if trace.name == OTHERS else LINE_COLORS[number % len(LINE_COLORS)]
        drawing.add_scatter(
            x=trace.x,
            y=trace.y,
            name=trace.name,
            stackgroup="cores",
            line={"color": color, "width": 0.8},
            fillcolor=faded(color, 0.55),
            hovertemplate="%{y:.1f} %",
        )
    return drawing.update_yaxes(range=[0, 105])


def traffic(network: RateSeries, disk: RateSeries, revision: str = "") -> go.Figure:
    """Network by interface and disk, side by side."""
    labels = [(SINCE_START, "network, MB/s"), (SINCE_START, "disk, MB/s")]
    drawing = panels("Network and disk", labels, revision, 280)
    if not network.lines and not disk.lines:
        return empty(drawing, "nothing was sent, read or written, or no reading")
    draw_lines(drawing, network.lines, "%{y:,.2f} MB/s", column=1)
    draw_lines(drawing, disk.lines, "%{y:,.2f} MB/s", column=2)
    for trace, color in zip(drawing.data[len(network.lines) :], _DISK_COLORS, strict=False):
        trace.line.color = color
    drawing.update_traces(showlegend=True)
    return drawing.update_yaxes(rangemode="tozero")


def interfaces(series: RateSeries, revision: str = "") -> go.Figure:
    """The ranks' own interfaces in a lab."""
    drawing = figure("Network of the ranks' own interfaces", SINCE_START, "MB/s", revision, 280)
    if not series.lines:
        return empty(drawing, "nothing was sent or received yet")
    draw_lines(drawing, series.lines, "%{y:,.2f} MB/s")
    return drawing.update_yaxes(rangemode="tozero")


def memory(series: MemorySeries, revision: str = "") -> go.Figure:
    """A line per rank, and the highest peak with what the rank did then."""
    drawing = figure(f"Memory by rank — {series.kind}", SINCE_START, "GiB", revision)
    if not series.lines:
        return empty(drawing, "no memory reading")
    draw_lines(drawing, series.lines, "%{y:,.3f} GiB")
    if series.peak is not None:
        drawing.add_scatter(
            x=[series.peak.seconds],
            y=[series.peak.gib],
            name="peak",
            text=[series.peak.text],
            textposition="top left" if _late(series, series.peak.seconds) else "top right",
            mode="markers+text",
            marker={"symbol": "diamond", "size": 10, "color": PHASE_COLORS.get(series.peak.phase, NEUTRAL)},
            showlegend=False,
            hovertemplate="%{text}",
        )
        return drawing.update_yaxes(range=[0, series.peak.gib * _HEADROOM])
    return drawing.update_yaxes(rangemode="tozero")


def _late(series: MemorySeries, seconds: float) -> bool:
    """Whether a point is in the right half, where a text has its room on the left."""
    first, last = (pick(pick(trace.x) for trace in series.lines) for pick in (min, max))
    return seconds > (first + last) / 2
