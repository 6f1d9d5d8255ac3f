"""Ratios of steps that were taken in turn, with 95 % intervals, and whether they keep a bar."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

#: The interval's width varies from run to run.
RESERVE = 1.6
_DRAWS = 4000


class Taken(NamedTuple):
    """One step of one rank."""

    kind: str
    cpu_seconds: float
    wall_seconds: float


class Ratio(NamedTuple):
    """A ratio of means with its 95 % interval."""

    middle: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Of the interval."""
        return self.high - self.low

    def added(self) -> str:
        """As added percent."""
        middle, low, high = (100 * (value - 1) for value in self)
        return f"{middle:+.2f} % ({low:+.2f} to {high:+.2f})"

    def plain(self) -> str:
        """As it is."""
        return f"{self.middle:.3f} ({self.low:.3f} to {self.high:.3f})"

    def verdict(self, most: float) -> str:
        """Whether the ratio is at most that, as far as the interval can tell."""
        if self.high <= most:
            return "pass"
        return "missed" if self.low > most else "cannot decide"


def ratio(top: np.ndarray, bottom: np.ndarray) -> Ratio:
    """Ratio of means; the interval is a bootstrap over pairs."""
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, len(top), (_DRAWS, len(top)))
    ratios = top[drawn].mean(axis=1) / bottom[drawn].mean(axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Ratio(float(top.mean() / bottom.mean()), float(low), float(high))


def half_width(found: Sequence[float]) -> float:
    """Of the 95 % interval around the mean of a few seeds, by Student's t."""
    from scipy.stats import t as student  # slow to load, and most tables have no need of it

    error = float(np.std(found, ddof=1) / np.sqrt(len(found)))
    return error * float(student.ppf(0.975, len(found) - 1))


def both(first: Ratio, second: Ratio) -> Ratio:
    """What two things add to the same, measured apart: errors add as those of independent numbers do."""
    middle = first.middle + second.middle - 1
    below = math.hypot(first.middle - first.low, second.middle - second.low)
    above = math.hypot(first.high - first.middle, second.high - second.middle)
    return Ratio(middle, middle - below, middle + above)


def cpu_seconds(ranks: Sequence[Sequence[Taken]], kinds: Iterable[str]) -> dict[str, np.ndarray]:
    """Per kind, the CPU seconds of each step, summed over ranks."""
    return {kind: _values(ranks, kind, "cpu_seconds").sum(axis=0) for kind in kinds}


def wall_seconds(ranks: Sequence[Sequence[Taken]], kinds: Iterable[str]) -> dict[str, np.ndarray]:
    """Per kind, the wall seconds of each step on the rank that took longest."""
    return {kind: _values(ranks, kind, "wall_seconds").max(axis=0) for kind in kinds}


def rounds_needed(pilot: Ratio, rounds: int, margin: float) -> int:
    """Rounds that make the interval narrower than the margin, by its width in a pilot of so many."""
    return math.ceil(rounds * (RESERVE * pilot.width / margin) ** 2)


def _values(ranks: Sequence[Sequence[Taken]], kind: str, column: str) -> np.ndarray:
    return np.array([[getattr(step, column) for step in rank if step.kind == kind] for rank in ranks])
