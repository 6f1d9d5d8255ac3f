"""A study's trials as data: measured ones, runnable ones, points as rows of numbers. Pure.

Numbers stay as they are; a category is one column for each of its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from engine.config.errors import several
from engine.run.outcome import GOOD
from tuning.analysis import leaderboard
from tuning.space.knobs import Knob
from tuning.space.points import Point
from tuning.space.space import Space
from tuning.storage.state import StudyState, Trial


def ended_trials(state: StudyState) -> int:
    """How many trials of the search have an end; what is worked out from them is kept under this number."""
    return sum(1 for trial in state.trials if trial.outcome is not None and trial.confirms is None)


def measured_trials(state: StudyState) -> list[Trial]:
    """Trials of the search with a value above 0, of which a logarithm can be taken."""
    return [trial for trial in leaderboard.measured_trials(state) if (trial.value or 0.0) > 0]


def has_failed(trial: Trial) -> bool | None:
    """Whether a trial's configuration failed; None where its ending says nothing about the configuration."""
    if trial.confirms is not None or trial.outcome is None:
        return None
    if trial.constraints.get(trial.outcome, 0.0) > 0:
        return True
    return False if trial.outcome in GOOD else None


def judged_trials(state: StudyState) -> list[tuple[Trial, bool]]:
    """Trials whose ending speaks about the configuration, and whether they failed."""
    outcomes = ((trial, has_failed(trial)) for trial in state.trials)
    return [(trial, bad) for trial, bad in outcomes if bad is not None]


def knobs_at(space: Space, trial: Trial) -> Point:
    """The turned knobs of a trial, also those that do not act; what this version does not know is left out."""
    point = space.base_values | space.canonical_point(trial.config)
    return {knob.key: point[knob.key] for knob in space.knobs}


def is_number(knob: Knob) -> bool:
    """Whether a knob's values have an order: numbers, or numbers and a missing one that means all there are."""
    values = [choice for choice in knob.choices if choice is not None]
    numbers = all(isinstance(choice, int | float) and not isinstance(choice, bool) for choice in values)
    return knob.is_range or (numbers and bool(values))


def sort_values(knob: Knob, values: Iterable[Any]) -> list[Any]:
    """Different values in their order: numbers by size with the missing one last, others as the study lists them."""
    distinct = list(dict.fromkeys(values))
    if is_number(knob):
        return sorted(distinct, key=lambda value: (value is None, value if value is not None else 0))
    return sorted(distinct, key=knob.choices.index if set(distinct) <= set(knob.choices) else str)


def move_point(space: Space, point: Point, key: str, value: Any) -> tuple[Point | None, str]:
    """A point with one knob at another value; None with the reason where that cannot run, or without where it is the
    same run.
    """
    values = {name: now for name, now in point.items() if name != "parallel.dp"} | {key: value}
    if not space.fits(values):
        return None, f"its degrees do not divide {several(space.ranks, 'ranks')}"
    moved = space.point(values)
    if moved.get(key) != value or moved == point:
        return None, ""
    broken = space.problem(moved)
    return (None, broken) if broken else (moved, "")


Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Group:
    """The columns of one knob. ``names``: the value that each column stands for; none for a number's one column."""

    knob: Knob
    names: tuple[Any, ...]
    values_seen: tuple[Any, ...]
    above_all: float = 0.0

    @property
    def width(self) -> int:
        """How many columns."""
        return len(self.names) or 1

    def encode(self, value: Any) -> list[float]:
        """The columns of one value."""
        if self.names:
            return [float(value == name) for name in self.names]
        return [self.above_all if value is None else float(value)]

    def knows(self, value: Any) -> bool:
        """Whether a value is one of those that were seen, or a number between them."""
        if self.names or value is None:
            return value in self.values_seen
        numbers = [number for number in self.values_seen if number is not None]
        return bool(min(numbers) <= value <= max(numbers))


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns each knob has, in order."""

    groups: tuple[Group, ...]

    def encode(self, points: Sequence[Point]) -> Array:
        """One row for each point."""
        rows = [
            [number for group in self.groups for number in group.encode(point[group.knob.key])]
            for point in points
        ]
        return np.array(rows, dtype=np.float64)

    def know(self, point: Point) -> bool:
        """Whether each value of a point was seen, so that predicting it is no guess."""
        return all(group.knows(point[group.knob.key]) for group in self.groups)

    def slices(self) -> list[tuple[str, slice]]:
        """Each knob's key and its columns."""
        ends = np.cumsum([group.width for group in self.groups])
        return [
            (group.knob.key, slice(int(end) - group.width, int(end)))
            for group, end in zip(self.groups, ends, strict=True)
        ]


def columns(knobs: Sequence[Knob], points: Sequence[Point]) -> Columns:
    """For those knobs that differ between points."""
    groups = (_group(knob, sort_values(knob, (point[knob.key] for point in points))) for knob in knobs)
    return Columns(tuple(group for group in groups if group is not None))


def _group(knob: Knob, values: list[Any]) -> Group | None:
    if len(values) < 2:
        return None
    if is_number(knob):
        numbers = [float(value) for value in values if value is not None]
        return Group(knob, (), tuple(values), above_all=2 * max(map(abs, numbers)) + 1)
    return Group(knob, tuple(values if len(values) > 2 else values[1:]), tuple(values))
