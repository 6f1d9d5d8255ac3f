"""Numbers of the Machine page's figures, from a calibration. No drawing, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.run.calibration.table import Calibration, Curve
from profilers.collectives.bandwidth import bus_bandwidth
from profilers.model.links import expected_seconds

GIGA, TERA = 1e9, 1e12
#: Places at which a fit is drawn.
_FIT_POINTS = 160


class Measured(NamedTuple):
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
    operations: list[Measured]


class RateLine(NamedTuple):
    """FLOP/s of one rank over the edge of the matrices, in ``GemmSeries.unit``."""

    name: str
    sizes: list[int]
    rates: list[float]


class GemmSeries(NamedTuple):
    """A line for each dtype and number of ranks at work."""

    unit: str
    lines: list[RateLine]


def groups(shown: Calibration) -> list[tuple[str, int]]:
    """Backends and sizes of groups that were measured."""
    return sorted({(curve.backend, curve.ranks) for curve in shown.of("collective")})


def bandwidth_series(shown: Calibration, backend: str, ranks: int) -> BandwidthSeries:
    """The operations of one backend in groups of one size."""
    curves = [curve for curve in shown.of("collective") if (curve.backend, curve.ranks) == (backend, ranks)]
    return BandwidthSeries(ranks, backend, [_measured(curve) for curve in curves])


def gemm_series(shown: Calibration) -> GemmSeries:
    """In TFLOP/s where a device reaches one, else in GFLOP/s."""
    curves = shown.of("gemm")
    best = max((curve.peak or 0.0 for curve in curves), default=0.0)
    scale, unit = (TERA, "TFLOP/s") if best >= TERA else (GIGA, "GFLOP/s")
    return GemmSeries(unit, [_line(curve, scale) for curve in curves])


def _measured(curve: Curve) -> Measured:
    seen, held_out = _rates(curve, False), _rates(curve, True)
    sizes = _between([point.size for point in curve.points])
    return Measured(curve.name, *seen, *held_out, *_fitted(curve, sizes))


def _rates(curve: Curve, held_out: bool) -> tuple[list[int], list[float]]:
    points = [point for point in curve.points if point.held_out == held_out]
    known = [(point.size, rate / GIGA) for point in points if (rate := curve.rate(point)) is not None]
    return [size for size, _ in known], [rate for _, rate in known]


def _fitted(curve: Curve, sizes: Sequence[float]) -> tuple[list[float], list[float]]:
    segments = curve.fit.segments if curve.fit else ()
    rates = [
        bus_bandwidth(curve.name, round(size), expected_seconds(segments, size), curve.ranks)
        for size in sizes
    ]
    known = [(size, rate / GIGA) for size, rate in zip(sizes, rates, strict=True) if rate is not None]
    return [size for size, _ in known], [rate for _, rate in known]


def _between(sizes: Sequence[int]) -> list[float]:
    return np.geomspace(sizes[0], sizes[-1], _FIT_POINTS).tolist() if sizes else []


def _line(curve: Curve, scale: float) -> RateLine:
    name = f"{curve.name}, {curve.ranks:,} rank{'s' if curve.ranks > 1 else ''}"
    if curve.device != "cpu":
        name += f", {curve.device}"
    rates = [(curve.rate(point) or 0.0) / scale for point in curve.points]
    return RateLine(name, [point.size for point in curve.points], rates)
