"""T(S) = alpha + S / beta fitted to measured times, in one or two segments, with its error elsewhere; pure.

Residuals are relative, for sizes span six orders of magnitude, and far ones count less (Huber 1964, "Robust estimation
of a location parameter"). Small and large payloads may go by different algorithms, so a second segment is taken where
it foretells left-out points much better; never by the held-out sizes, which only tell the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.run.calibration.table import Fit, Point
from profilers.model.links import Segment, expected_seconds

_Array = np.ndarray[Any, np.dtype[np.float64]]

#: Points that a segment needs: two parameters and one to check them with.
_LEAST_POINTS = 3
#: Two segments must bring the mean error at left-out points below this share of one segment's.
_WORTH_IT = 0.8
#: Below this mean error nobody looks for a second segment.
_GOOD_ENOUGH = 0.005
_ROUNDS = 30
#: 95 % efficiency where residuals are normal; the median absolute deviation as a standard deviation.
_HUBER, _DEVIATION = 1.345, 1.4826


def fit(points: Sequence[Point]) -> Fit | None:
    """The fit to the points that are not held out; None for fewer than two of them."""
    fitted = sorted((point for point in points if not point.held_out), key=lambda point: point.size)
    if len(fitted) < 2:
        return None
    sizes, seconds = _columns(fitted)
    segments = _segments(sizes, seconds)
    errors = _errors(segments, *_columns([point for point in points if point.held_out]))
    has_errors = len(errors) > 0
    return Fit(
        segments,
        float(np.median(errors)) if has_errors else None,
        float(errors.max()) if has_errors else None,
        len(errors),
    )


def _columns(points: Sequence[Point]) -> tuple[_Array, _Array]:
    return np.array([float(point.size) for point in points]), np.array([point.seconds for point in points])


def _errors(segments: tuple[Segment, ...], sizes: _Array, seconds: _Array) -> _Array:
    """Relative errors; a segment ends above its last point, so the last one takes what is larger."""
    expected = np.array([expected_seconds(segments, size) for size in sizes.tolist()], dtype=np.float64)
    return np.asarray(np.abs(expected / seconds - 1.0))


def _segments(sizes: _Array, seconds: _Array) -> tuple[Segment, ...]:
    """One segment, or two if they foretell much better."""
    single_line = (_line(sizes, seconds),)
    alone = _left_out_error(sizes, seconds, 0)
    cuts = range(_LEAST_POINTS, len(sizes) - _LEAST_POINTS + 1)
    tried = {cut: _left_out_error(sizes, seconds, cut) for cut in cuts}
    best = min(tried, key=lambda cut: tried[cut], default=None)
    if best is None or alone < _GOOD_ENOUGH or tried[best] > _WORTH_IT * alone:
        return single_line
    return _split(sizes, seconds, best)


def _split(sizes: _Array, seconds: _Array, cut: int) -> tuple[Segment, ...]:
    """Two segments; the border is the geometric mean of the sizes beside it."""
    small, large = _line(sizes[:cut], seconds[:cut]), _line(sizes[cut:], seconds[cut:])
    border = float(np.sqrt(sizes[cut - 1] * sizes[cut]))
    return Segment(small.alpha_seconds, small.bytes_per_second, border), large


def _left_out_error(sizes: _Array, seconds: _Array, cut: int) -> float:
    """Mean relative error at points that each fit goes without; ``cut`` 0 means one segment."""
    errors = []
    for out in range(len(sizes)):
        side = np.arange(len(sizes)) >= cut if out >= cut else np.arange(len(sizes)) < cut
        side[out] = False
        line = _line(sizes[side], seconds[side])
        errors.append(abs(line.seconds(float(sizes[out])) / seconds[out] - 1.0))
    return float(np.mean(errors))


def _line(sizes: _Array, seconds: _Array) -> Segment:
    """Reweighted least squares of relative residuals; neither alpha nor 1 / beta is negative."""
    weights = 1.0 / seconds**2
    trust = np.ones_like(seconds)
    alpha = slope = 0.0
    for _ in range(_ROUNDS):
        alpha, slope = _least_squares(sizes, seconds, weights * trust)
        residuals = np.abs((alpha + slope * sizes) / seconds - 1.0)
        scale = max(_DEVIATION * float(np.median(residuals)), 1e-9)
        trust = np.minimum(1.0, _HUBER * scale / np.maximum(residuals, 1e-12))
    return Segment(alpha, 1.0 / slope if slope > 0 else None)


def _least_squares(sizes: _Array, seconds: _Array, weights: _Array) -> tuple[float, float]:
    """alpha and 1 / beta of one weighted fit, both at least zero."""
    centre, level = np.average(sizes, weights=weights), np.average(seconds, weights=weights)
    spread = float(np.sum(weights * (sizes - centre) ** 2))
    slope = float(np.sum(weights * (sizes - centre) * (seconds - level))) / spread if spread > 0 else 0.0
    if slope <= 0:
        return float(level), 0.0
    alpha = float(level - slope * centre)
    if alpha >= 0:
        return alpha, slope
    return 0.0, float(np.sum(weights * sizes * seconds) / np.sum(weights * sizes**2))
