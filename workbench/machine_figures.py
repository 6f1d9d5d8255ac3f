"""Drawing for the Machine page: bandwidth over payload with its fit, and matrix products over their size."""

from __future__ import annotations

import plotly.graph_objects as go

from workbench.figures import LINE_COLORS, empty, figure
from workbench.machine_series import BandwidthSeries, GemmSeries, Measured

HEIGHT = 380
_BYTE_TICKS = [4**power for power in range(3, 16)]

#: Height of a row of the legend, which has two names in a narrow column.
_LEGEND_ROW = 20


def bandwidth(series: BandwidthSeries) -> go.Figure:
    """Full points were fitted, hollow ones only check the fit, which is the line."""
    title = f"Bus bandwidth by payload — {series.backend}, groups of {series.ranks:,}"
    drawing = figure(title, "payload S", "bus bandwidth, GB/s", title, height=HEIGHT)
    if not series.operations:
        return empty(drawing, "no collective was measured")
    for number, operation in enumerate(series.operations):
        _operation(drawing, operation, LINE_COLORS[number % len(LINE_COLORS)])
    ticks = {"tickvals": _BYTE_TICKS, "ticktext": [_bytes(size) for size in _BYTE_TICKS]}
    return drawing.update_xaxes(type="log", **ticks).update_yaxes(rangemode="tozero")


def _operation(drawing: go.Figure, measured: Measured, color: str) -> None:
    name = measured.name.replace("_", " ")
    drawing.add_scatter(
        x=measured.fit_sizes,
        y=measured.fit_rates,
        name=name,
        mode="lines",
        line={"color": color, "width": 1.8},
        legendgroup=name,
        hoverinfo="skip",
    )
    shapes = (
        ("", "circle", measured.sizes, measured.rates),
        (", held out", "circle-open", measured.held_out_sizes, measured.held_out_rates),
    )
    for addition, symbol, sizes, rates in shapes:
        drawing.add_scatter(
            x=sizes,
            y=rates,
            name=name + addition,
            mode="markers",
            marker={"color": color, "size": 7, "symbol": symbol, "line": {"width": 1.5, "color": color}},
            legendgroup=name,
            showlegend=False,
            hovertemplate="%{y:,.3f} GB/s",
        )


def gemm(series: GemmSeries) -> go.Figure:
    """Lines: how fast one rank multiplies, alone and while all ranks do."""
    title = "Matrix products by size, each rank"
    more = _LEGEND_ROW * max(0, (len(series.lines) - 1) // 2)
    drawing = figure(title, "edge n of n x n matrices", series.unit, title, height=HEIGHT + more)
    drawing.update_layout(margin_t=drawing.layout.margin.t + more)
    if not series.lines:
        return empty(drawing, "no matrix product was measured")
    for number, line in enumerate(series.lines):
        drawing.add_scatter(
            x=line.sizes,
            y=line.rates,
            name=line.name,
            mode="lines+markers",
            line={"color": LINE_COLORS[number % len(LINE_COLORS)], "width": 1.8},
            hovertemplate="%{y:,.1f} " + series.unit,
        )
    edges = sorted({size for line in series.lines for size in line.sizes})
    ticks = {"tickvals": edges, "ticktext": [f"{edge:,}" for edge in edges]}
    return drawing.update_xaxes(type="log", **ticks).update_yaxes(rangemode="tozero")


def _bytes(size: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size // unit:,} {name}"
    return f"{size:,} B"
