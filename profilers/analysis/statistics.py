"""Means with intervals from a moving-block bootstrap, because a step depends on the step before.

How many steps a run needed to settle, which values stand out, and what chance alone would do; pure. What is measured
stays as it was configured.
"""

from __future__ import annotations

import math
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
    return float(np.percentile(_finite_array(values), 95))


def mean_interval(values: Values, seed: int = 0, resamples: int = 1000) -> Interval:
    """Mean and the 95 % percentile interval of its moving-block bootstrap. ValueError without values.

    Source: Künsch 1989, "The jackknife and the bootstrap for general stationary observations"; block length
    n^(1/3) after Hall, Horowitz and Jing 1995.
    """
    data = _finite_array(values)
    value, drawn = float(data.mean()), bootstrap_means(data, seed, resamples)
    if drawn is None:
        return Interval(value, None, None)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Interval(value, float(low), float(high))


def bootstrap_means(values: Values, seed: int = 0, resamples: int = 1000) -> _Array | None:
    """Means of ``resamples`` series of random blocks of neighbours; None for fewer than three values."""
    data = _finite_array(values)
    count = len(data)
    if count < MINIMUM_VALUES:
        return None
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK_VALUES // count)
    chunks = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    series = (data[_block_indices(generator, count, chunk)] for chunk in chunks)
    return np.concatenate([chunk.mean(axis=1) for chunk in series])


def _block_indices(
    generator: np.random.Generator, count: int, rows: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    length = max(1, round(count ** (1 / 3)))
    blocks = -(-count // length)
    starts = generator.integers(0, count - length + 1, size=(rows, blocks, 1))
    return (starts + np.arange(length)).reshape(rows, -1)[:, :count]


def _finite_array(values: Values) -> _Array:
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        raise ValueError("no values")
    if not np.isfinite(data).all():
        raise ValueError("values must be finite; leave unknown ones out")
    return data


#: Fewer steps say nothing.
MINIMUM_STEPS = 10
#: Hiccups count as no more than so many deviations.
_CLIP_DEVIATIONS = 5.0
#: Steps of the warm-up differ from the others by so many deviations, and by so much of a step.
_DEVIATIONS = 3.0
LEAST_FRACTION = 0.05
#: Makes a median absolute deviation a standard deviation of normal values.
_NORMAL = 1.4826


def warmup_steps(seconds: Values, least: int = MINIMUM_STEPS) -> int | None:
    """Steps at the start that do not belong to the rest; 0 if none does, None if fewer than ``least`` or if they never
    settle.

    The cut d is where the standard error of the mean of what remains is least: MSER, the marginal standard error rule
    (White 1997, "An effective truncation heuristic for bias reduction in simulation output"), over the first half.
    The rule alone cuts noise and hiccups, too. So values are clipped at five deviations of the second half, and of the
    steps before the cut only those count that are, for the most part, further from the second half's median than 5 %
    and three deviations. If that reaches the end of the first half, or the two parts of the second half differ by 5 %
    and three standard errors, the run was too short to settle.
    """
    values = np.asarray(seconds, dtype=np.float64)
    count = len(values)
    if count < least:
        return None
    level, deviation = _level_and_deviation(values[count // 2 :])
    reach = max(_CLIP_DEVIATIONS * deviation, 2 * LEAST_FRACTION * level)
    clipped = np.clip(values, level - reach, level + reach)
    cut = int(np.argmin(standard_errors(clipped)[: count // 2 + 1]))
    strangers = _strangers(clipped[:cut], level, max(LEAST_FRACTION * level, _DEVIATIONS * deviation))
    return (
        strangers if strangers < count // 2 and not _drifts(values[count // 2 :], level, deviation) else None
    )


def standard_errors(values: _Array) -> _Array:
    """Of the mean of ``values[d:]``, squared, for each d up to the last but one: sum((y - mean)^2) / (n - d)^2."""
    counts = np.arange(len(values), 1, -1)
    sums = np.cumsum(values[::-1])[::-1][:-1]
    squares = np.cumsum(values[::-1] ** 2)[::-1][:-1]
    return np.asarray(np.maximum(squares - sums**2 / counts, 0.0) / counts**2)


def _level_and_deviation(values: _Array) -> tuple[float, float]:
    """Median, and standard deviation by the median absolute deviation."""
    level = float(np.median(values))
    return level, _NORMAL * float(np.median(np.abs(values - level)))


def _drifts(values: _Array, level: float, deviation: float) -> bool:
    half = len(values) // 2
    change = abs(float(np.median(values[:half]) - np.median(values[half:])))
    return bool(change > max(LEAST_FRACTION * level, _DEVIATIONS * deviation / half**0.5))


def _strangers(values: _Array, level: float, least: float) -> int:
    """The most first values of which the last one and at least half are further than ``least`` from the level."""
    far = np.abs(values - level) > least
    most = far & (2 * np.cumsum(far) >= np.arange(1, len(far) + 1))
    return int(np.flatnonzero(most)[-1]) + 1 if most.any() else 0


#: Values whose modified z-score is above this are outliers: Iglewicz and Hoaglin 1993, "How to detect and handle
#: outliers", ASQC basic references in quality control 16, who write 0.6745 for the inverse of ``_NORMAL``.
_FAR_SCORE = 3.5


def high_outliers(values: Values) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which values lie far above the median: by the modified z-score (x - median) / (1.4826 MAD), above 3.5."""
    level, deviation = _level_and_deviation(_finite_array(values))
    return np.asarray(np.asarray(values) - level > _FAR_SCORE * deviation)


def chance(count: int, tries: int, probability: float) -> float:
    """That something of this probability happens at least ``count`` times in so many tries that know nothing of each
    other: the upper tail of the binomial distribution, exact. The probability is above 0 and below 1.
    """
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, tries + 1)))])
    counts = np.arange(count, tries + 1)
    ways = logs[tries] - logs[counts] - logs[tries - counts]
    terms = ways + counts * math.log(probability) + (tries - counts) * math.log1p(-probability)
    return min(1.0, float(np.exp(terms).sum()))
