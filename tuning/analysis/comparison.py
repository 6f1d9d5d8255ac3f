"""Two configurations side by side: by the rounds of one run each, or by the windows that measured both again. Pure.

A run's steps agree with each other better than two runs of one configuration do, so an interval from one run's
steps is too narrow; of what a run gives one value of, such as its energy, it tells nothing. Only repeated runs do
(:mod:`tuning.analysis.paired_comparison`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np

from profilers.analysis.statistics import Interval, bootstrap_means
from tuning.analysis.paired_comparison import Verdict, interval, verdict

RESAMPLES = 1000
LEVEL = 0.95
#: Beyond so many standard deviations, on both sides together, lie 5 % of a normal distribution.
NORMAL = 1.96
#: What is assumed of the noise from run to run counts like so many observed degrees of freedom.
_ASSUMED_DEGREES = 4
Runs = Sequence[Sequence[float]]
_Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Spread:
    """How far single runs stray from their configuration's mean: a variance of logarithms, and what it is from."""

    variance: float
    degrees: int

    def blend(self, assumed: float) -> float:
        """The standard deviation, with what is ``assumed`` of it as long as little was seen: the mean of both
        variances, weighted by their degrees of freedom.
        """
        own_squares = self.variance * self.degrees
        return math.sqrt((own_squares + _ASSUMED_DEGREES * assumed**2) / (self.degrees + _ASSUMED_DEGREES))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two configurations and the ratio of their rates. ``repeated``: both were measured again, so the noise from run
    to run is in the ratio's interval, and theirs are where another run falls. ``verdict`` is what whoever compares
    them makes of it, ``margin`` what counts as equal. ``in_turns``: the ratio is of windows beside the leader around
    them.
    """

    better: Interval
    baseline: Interval
    ratio: Interval
    repeated: bool
    verdict: Verdict
    margin: float = 0.0
    probability: float | None = None
    in_turns: bool = False


def compare(first: Sequence[float], second: Sequence[float], seed: int) -> Comparison:
    """Two configurations by the rounds of one run each; without intervals where a run gives but one value. ``seed`` is
    that of the resampling.
    """
    interval_of_rates = [_of_rate(tuple(run), seed) for run in (first, second)]
    middles = [math.log(_rate(run)) for run in (first, second)]
    errors = [math.inf if variance is None else math.sqrt(variance) for variance in interval_of_rates]
    apart, error = middles[0] - middles[1], math.hypot(*errors)
    sure = NormalDist().cdf(apart / error) if 0 < error < math.inf else None
    ratio = interval(apart, NORMAL * error)
    return Comparison(
        interval(middles[0], NORMAL * errors[0]),
        interval(middles[1], NORMAL * errors[1]),
        ratio,
        repeated=False,
        verdict=verdict(ratio, margin=0.0),
        probability=sure,
    )


def compare_runs(first_runs: Runs, other_runs: Runs, seed: int) -> Comparison:
    """Two configurations by several runs of each, of different times: how far runs stray is taken from whichever was
    measured more than once. Of one run each see :func:`compare`.
    """
    strays = spread_of((first_runs, other_runs))
    if not strays.degrees:
        return compare(first_runs[0], other_runs[0], seed)
    middles = [float(log_rates(runs).mean()) for runs in (first_runs, other_runs)]
    reach = student(LEVEL, strays.degrees) * math.sqrt(strays.variance)
    halves = [reach / math.sqrt(len(runs)) for runs in (first_runs, other_runs)]
    first, second = (interval(*pair) for pair in zip(middles, halves, strict=True))
    ratio = interval(middles[0] - middles[1], math.hypot(*halves))
    return Comparison(first, second, ratio, repeated=True, verdict=verdict(ratio, margin=0.0))


def interval_of_runs(logs: Sequence[float]) -> Interval:
    """What the logarithms of several runs' rates make together, and where 95 % of further such runs fall: Student's t,
    with the error of the mean and the noise of a run. Without ends from fewer than three runs.
    """
    if len(logs) < 3:
        return Interval(math.exp(fmean(logs)), None, None)
    error = stdev(logs) * math.sqrt(1 + 1 / len(logs))
    return interval(fmean(logs), student(LEVEL, len(logs) - 1) * error)


def spread_of(groups: Sequence[Runs]) -> Spread:
    """What configurations that were measured several times say together."""
    logs = [log_rates(runs) for runs in groups if len(runs) > 1]
    degrees = sum(len(values) - 1 for values in logs)
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in logs)
    return Spread(squares / degrees if degrees else 0.0, degrees)


def log_rates(runs: Runs) -> _Array:
    """The logarithm of each run's rate."""
    return np.log([_rate(run) for run in runs])


def _rate(samples: Sequence[float]) -> float:
    """What rates over rounds of equal length make over all of them: their harmonic mean."""
    return len(samples) / sum(1 / sample for sample in samples)


@lru_cache(maxsize=256)
def _of_rate(run: tuple[float, ...], seed: int) -> float | None:
    """The variance of the logarithm of a run's rate; asked again for every pair that the run is in."""
    drawn = bootstrap_means([1 / sample for sample in run], seed, RESAMPLES)
    return None if drawn is None else float(np.log(drawn).var())


@lru_cache(maxsize=4096)
def student(level: float, degrees: int) -> float:
    """The t beyond which, on both sides together, ``1 - level`` of Student's distribution lies.

    Raises:
        ValueError: there are no degrees of freedom, or the level is not between 0 and 1.
    """
    if degrees < 1 or not 0 < level < 1:
        raise ValueError("a quantile needs a level between 0 and 1 and at least one degree of freedom")
    from scipy.special import stdtrit  # takes 0.2 s to load, and most commands need no quantile

    return float(stdtrit(degrees, (1 + level) / 2))
