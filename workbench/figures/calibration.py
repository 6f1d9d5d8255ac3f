"""Drawing for the Machine page: bandwidth over payload with its fit, and matrix products over their size.

Numbers of the Machine page's figures, from a calibration. No drawing, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from engine.config.errors import several
from engine.run.calibration.table import Calibration, Curve
from profilers.collectives.bandwidth import bus_bandwidth
from profilers.model.links import expected_seconds
from workbench.figures.base import empty, figure
from workbench.figures.palette import LineLook, line_look

GIGA, TERA = 1e9, 1e12
#: Places at which a fit is drawn.
_FIT_POINTS = 160


class BandwidthLine(NamedTuple):
    """One operation: points that the fit saw, points that it did not, and the fit, in bytes and GB/s."""

    name: str
    sizes: list[int]
    rates: list[float]
    held_out_sizes: list[int]
    held_out_rates: list[float]
    fit_sizes: list[float]
    fit_rates: list[float]


class BandwidthSeries(NamedTuple):
    """Bus bandwidth over payload, of groups of one size."""

    ranks: int
    backend: str
    operations: list[BandwidthLine]


class RateLine(NamedTuple):
    """FLOP/s of one rank over the edge of the matrices, in ``GemmSeries.unit``."""

    name: str
    sizes: list[int]
    rates: list[float]


class GemmSeries(NamedTuple):
    """A line for each dtype and number of ranks at work."""

    unit: str
    lines: list[RateLine]


def groups(calibration: Calibration) -> list[tuple[str, int]]:
    """Backends and sizes of groups that were measured."""
    return sorted({(curve.backend, curve.ranks) for curve in calibration.select_curves("collective")})


def bandwidth_series(calibration: Calibration, backend: str, ranks: int) -> BandwidthSeries:
    """The operations of one backend in groups of one size."""
    curves = [
        curve
        for curve in calibration.select_curves("collective")
        if (curve.backend, curve.ranks) == (backend, ranks)
    ]
    return BandwidthSeries(ranks, backend, [_curve_series(curve) for curve in curves])


def gemm_series(calibration: Calibration) -> GemmSeries:
    """In TFLOP/s where a device reaches one, else in GFLOP/s."""
    curves = calibration.select_curves("gemm")
    best = max((curve.peak or 0.0 for curve in curves), default=0.0)
    scale, unit = (TERA, "TFLOP/s") if best >= TERA else (GIGA, "GFLOP/s")
    return GemmSeries(unit, [_line(curve, scale) for curve in curves])


def _curve_series(curve: Curve) -> BandwidthLine:
    fitted, held_out = _rates(curve, False), _rates(curve, True)
    sizes = _fit_sizes([point.size for point in curve.points])
    return BandwidthLine(curve.name, *fitted, *held_out, *_expected_rates(curve, sizes))


def _rates(curve: Curve, held_out: bool) -> tuple[list[int], list[float]]:
    points = [point for point in curve.points if point.held_out == held_out]
    points_with_rate = [
        (point.size, rate / GIGA) for point in points if (rate := curve.rate(point)) is not None
    ]
    return [size for size, _ in points_with_rate], [rate for _, rate in points_with_rate]


def _expected_rates(curve: Curve, sizes: Sequence[float]) -> tuple[list[float], list[float]]:
    segments = curve.fit.segments if curve.fit else ()
    rates = [
        bus_bandwidth(curve.name, round(size), expected_seconds(segments, size), curve.ranks)
        for size in sizes
    ]
    points_with_rate = [
        (size, rate / GIGA) for size, rate in zip(sizes, rates, strict=True) if rate is not None
    ]
    return [size for size, _ in points_with_rate], [rate for _, rate in points_with_rate]


def _fit_sizes(sizes: Sequence[int]) -> list[float]:
    return np.geomspace(sizes[0], sizes[-1], _FIT_POINTS).tolist() if sizes else []


def _line(curve: Curve, scale: float) -> RateLine:
    name = f"{curve.name}, {several(curve.ranks, 'ranks')}"
    if curve.device != "cpu":
        name += f", {curve.device}"
    rates = [(curve.rate(point) or 0.0) / scale for point in curve.points]
    return RateLine(name, [point.size for point in curve.points], rates)


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
        _operation(drawing, operation, line_look(number))
    ticks = {"tickvals": _BYTE_TICKS, "ticktext": [_bytes(size) for size in _BYTE_TICKS]}
    return drawing.update_xaxes(type="log", **ticks).update_yaxes(rangemode="tozero")


def _operation(drawing: go.Figure, series: BandwidthLine, look: LineLook) -> None:
    name = series.name.replace("_", " ")
    drawing.add_scatter(
        x=series.fit_sizes,
        y=series.fit_rates,
        name=name,
        mode="lines",
        line={"color": look.color, "dash": look.dash, "width": 1.8},
        legendgroup=name,
        hoverinfo="skip",
    )
    shapes = (
        ("", "circle", series.sizes, series.rates),
        (", held out", "circle-open", series.held_out_sizes, series.held_out_rates),
    )
    for addition, symbol, sizes, rates in shapes:
        drawing.add_scatter(
            x=sizes,
            y=rates,
            name=name + addition,
            mode="markers",
            marker={
                "color": look.color,
                "size": 7,
                "symbol": symbol,
                "line": {"width": 1.5, "color": look.color},
            },
            legendgroup=name,
            showlegend=False,
            hovertemplate="%{y:,.3f} GB/s",
        )


def gemm(series: GemmSeries) -> go.Figure:
    """Lines: how fast one rank multiplies, alone and while all ranks do."""
    title = "Matrix products by size, each rank"
    legend_height = _LEGEND_ROW * max(0, (len(series.lines) - 1) // 2)
    drawing = figure(title, "edge n of n x n matrices", series.unit, title, height=HEIGHT + legend_height)
    drawing.update_layout(margin_t=drawing.layout.margin.t + legend_height)
    if not series.lines:
        return empty(drawing, "no matrix product was measured")
    for number, line in enumerate(series.lines):
        look = line_look(number)
        drawing.add_scatter(
            x=line.sizes,
            y=line.rates,
            name=line.name,
            mode="lines+markers",
            line={"color": look.color, "dash": look.dash, "width": 1.8},
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
