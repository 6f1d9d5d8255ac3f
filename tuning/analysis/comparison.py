"""Is a gain real? Intervals that count the noise inside a run and from run to run.

A run's steps agree with each other better than two runs of one configuration do, so an interval from one run's
steps is too narrow. How far runs stray is taken from every configuration that was measured more than once, all of them
together, and Student's t (Student 1908, "The probable error of a mean") says what so few runs leave open.
``benchmarks/confirmation.py`` tries it on made-up studies. Of what a run gives one value of, such as its energy, only
repeated runs tell how sure it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from profilers.analysis.statistics import Interval, bootstrap_means

RESAMPLES = 1000
#: An interval that reaches further than this factor to either side says nothing, and is left out.
WIDEST = 3.0
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

    def beside(self, assumed: float) -> float:
        """The standard deviation, with what is ``assumed`` of it as long as little was seen: the mean of both
        variances, weighted by their degrees of freedom.
        """
        seen = self.variance * self.degrees
        return math.sqrt((seen + _ASSUMED_DEGREES * assumed**2) / (self.degrees + _ASSUMED_DEGREES))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms and their ratio. ``repeated``: whether run-to-run noise is in the intervals."""

    better: Interval
    baseline: Interval
    ratio: Interval
    repeated: bool

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, or ``tie`` while the interval of the ratio holds 1 or is not known."""
        if self.ratio.low is not None and self.ratio.low > 1:
            return "better"
        if self.ratio.high is not None and self.ratio.high < 1:
            return "worse"
        return "tie"


def compare(
    arm: Runs, baseline: Runs, seed: int, spread: Sequence[Runs] = (), level: float = LEVEL
) -> Comparison:
    """Compare two configurations by the rates of their runs over all that was measured.

    Args:
        arm: samples of each run of the configuration, without the run that made it look best: that one was
            picked for its luck.
        baseline: samples of each run of the baseline.
        seed: of the resampling.
        spread: groups of runs of one configuration each, used only to see how far runs stray; without them, the two
            arms are.
        level: of the interval of the ratio; those of the arms are at 95 %.
    """
    strays = spread_of(spread or (arm, baseline))
    within = [_within(runs, seed) for runs in (arm, baseline)]
    errors = [_error(runs, inside, strays) for runs, inside in zip((arm, baseline), within, strict=True)]
    degrees = strays.degrees or 10**6
    centres = _centre(arm), _centre(baseline)
    both = None if None in errors else math.hypot(*(error or 0.0 for error in errors))
    return Comparison(
        _interval(centres[0], errors[0], student(LEVEL, degrees)),
        _interval(centres[1], errors[1], student(LEVEL, degrees)),
        _interval(centres[0] - centres[1], both, student(level, degrees)),
        strays.degrees > 0,
    )


def compare_single(arm: Runs, baseline: Runs, earlier: Runs = ()) -> Comparison:
    """Compare two configurations by what each run gives one value of.

    Args:
        arm: the value of each run of the configuration, as a list of one.
        baseline: the same of the baseline.
        earlier: further runs of the configuration, used only to see how far runs stray.
    """
    strays = spread_of([[*arm, *earlier], baseline])
    error = math.sqrt(strays.variance) if strays.degrees else None
    quantile = student(LEVEL, max(1, strays.degrees))

    def interval(centre: float, size: float) -> Interval:
        return _interval(centre, None if error is None else error * math.sqrt(size), quantile)

    first, second = _centre(arm), _centre(baseline)
    both = interval(first - second, 1 / len(arm) + 1 / len(baseline))
    return Comparison(
        interval(first, 1 / len(arm)),
        interval(second, 1 / len(baseline)),
        Interval(1.0, 1.0, 1.0) if arm is baseline else both,
        strays.degrees > 0,
    )


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


def _centre(runs: Runs) -> float:
    return float(log_rates(runs).mean())


def _within(runs: Runs, seed: int) -> float | None:
    """The mean variance of a run's rate, from its rounds; None if a run has too few."""
    known = [variance for run in runs if (variance := _of_rate(tuple(run), seed)) is not None]
    return sum(known) / len(known) if len(known) == len(runs) else None


@lru_cache(maxsize=256)
def _of_rate(run: tuple[float, ...], seed: int) -> float | None:
    """The variance of the logarithm of a run's rate; asked again for every pair that the run is in."""
    drawn = bootstrap_means([1 / sample for sample in run], seed, RESAMPLES)
    return None if drawn is None else float(np.log(drawn).var())


def _error(runs: Runs, within: float | None, strays: Spread) -> float | None:
    """The standard error of an arm's centre. A run's rate holds both noises; it cannot be surer than its rounds."""
    return None if within is None else math.sqrt(max(within, strays.variance) / len(runs))


def _interval(centre: float, error: float | None, quantile: float) -> Interval:
    half = math.inf if error is None else quantile * error
    if half > math.log(WIDEST):
        return Interval(math.exp(centre), None, None)
    return Interval(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


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
