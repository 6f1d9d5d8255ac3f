"""Medians with intervals from a moving-block bootstrap, because a step depends on the step before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Values = Sequence[float] | np.ndarray[Any, np.dtype[np.float64]]
_Array = np.ndarray[Any, np.dtype[np.float64]]

#: Fewer values than this give no interval.
MINIMUM_VALUES = 3
#: Resampled values held at a time; bounds the memory of long runs.
_CHUNK_VALUES = 2_000_000


class Interval(NamedTuple):
    """A value and its 95 % interval in the same unit; fewer than three values give no bounds."""

    value: float
    low: float | None
    high: float | None


def p95(values: Values) -> float:
    """The 95th percentile, interpolated linearly. ValueError without values."""
    return float(np.percentile(_checked(values), 95))


def median_interval(values: Values, seed: int = 0, resamples: int = 1000) -> Interval:
    """Median and the 95 % percentile interval of its moving-block bootstrap. ValueError without values.

    Source: Künsch 1989, "The jackknife and the bootstrap for general stationary observations"; block length
    n^(1/3) after Hall, Horowitz and Jing 1995.
    """
    data = _checked(values)
    return _interval(float(np.median(data)), bootstrap_medians(data, seed, resamples))


def ratio_interval(numerator: Values, denominator: Values, seed: int = 0, resamples: int = 1000) -> Interval:
    """median(numerator) / median(denominator), both resampled independently.

    ValueError without values or if the denominator's values are not all positive.
    """
    above, below = _checked(numerator), _checked(denominator)
    if below.min() <= 0:
        raise ValueError("the denominator of a ratio must have positive values only")
    above_medians = bootstrap_medians(above, seed, resamples)
    below_medians = bootstrap_medians(below, seed + 1, resamples)
    ratio = float(np.median(above) / np.median(below))
    if above_medians is None or below_medians is None:
        return Interval(ratio, None, None)
    return _interval(ratio, above_medians / below_medians)


def bootstrap_medians(values: Values, seed: int = 0, resamples: int = 1000) -> _Array | None:
    """Medians of ``resamples`` series of random blocks of neighbours; None for fewer than three values."""
    data = _checked(values)
    count = len(data)
    if count < MINIMUM_VALUES:
        return None
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK_VALUES // count)
    chunks = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    series = (data[_block_indices(generator, count, chunk)] for chunk in chunks)
    return np.concatenate([np.median(chunk, axis=1) for chunk in series])


def _block_indices(
    generator: np.random.Generator, count: int, rows: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    length = max(1, round(count ** (1 / 3)))
    blocks = -(-count // length)
    starts = generator.integers(0, count - length + 1, size=(rows, blocks, 1))
    return (starts + np.arange(length)).reshape(rows, -1)[:, :count]


def _interval(value: float, resampled: _Array | None) -> Interval:
    if resampled is None:
        return Interval(value, None, None)
    low, high = np.percentile(resampled, (2.5, 97.5))
    return Interval(value, float(low), float(high))


def _checked(values: Values) -> _Array:
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        raise ValueError("no values")
    if not np.isfinite(data).all():
        raise ValueError("values must be finite; leave unknown ones out")
    return data
