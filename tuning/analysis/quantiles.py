"""Quantiles of Student's t, for intervals from a few runs. Pure."""

from __future__ import annotations

from functools import lru_cache


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
