"""Comparing what a run gives one value of, such as its energy: only repeated runs tell how sure it is.

The spread is pooled over every configuration that was measured more than once and widened by Student's t, since a few
runs understate it. Source: Student 1908, "The probable error of a mean"; beyond ten degrees of freedom Fisher and
Cornish 1960.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from profilers.analysis.statistics import Interval
from tuning.analysis.comparison import Comparison, Runs

#: 97.5th percentiles of t with 1 to 10 degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_Z = 1.959964


def compare(arm: Runs, baseline: Runs, spread: Runs = ()) -> Comparison:
    """Two configurations by the means of their runs' values, in logarithms; arguments as ``confidence.compare``."""
    error, freedom = _error([[*arm, *spread], baseline])
    first, second = _logs(arm), _logs(baseline)
    means = float(np.mean(first)), float(np.mean(second))
    sizes = 1 / len(first), 1 / len(second)
    wide = None if freedom == 0 else quantile(freedom) * error
    return Comparison(
        _interval(means[0], wide, sizes[0]),
        _interval(means[1], wide, sizes[1]),
        Interval(1.0, 1.0, 1.0) if arm is baseline else _interval(means[0] - means[1], wide, sum(sizes)),
        freedom > 0,
    )


def quantile(freedom: int) -> float:
    """The 97.5th percentile of Student's t."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    first = (_Z**3 + _Z) / 4
    second = (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96
    return _Z + first / freedom + second / freedom**2


def _logs(runs: Runs) -> list[float]:
    return [math.log(float(np.median(run))) for run in runs]


def _error(arms: Sequence[Runs]) -> tuple[float, int]:
    """Pooled standard deviation of single runs, in logarithms, and its degrees of freedom."""
    logs = [_logs(runs) for runs in arms if len(runs) > 1]
    freedom = sum(len(found) - 1 for found in logs)
    squares = sum(float(np.var(found)) * len(found) for found in logs)
    return (math.sqrt(squares / freedom), freedom) if freedom else (0.0, 0)


def _interval(centre: float, wide: float | None, size: float) -> Interval:
    if wide is None:
        return Interval(math.exp(centre), None, None)
    reach = wide * math.sqrt(size)
    return Interval(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))
