"""Points as rows of numbers for a tree: numbers as they are, a category as one column for each of its values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tuning.knobs import Knob
from tuning.points import Point
from tuning.sensitivity import values

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Group:
    """The columns of one knob. ``names``: the value that each column stands for; none for a number's one column."""

    knob: Knob
    names: tuple[Any, ...]
    seen: tuple[Any, ...]
    above_all: float = 0.0

    @property
    def width(self) -> int:
        """How many columns."""
        return len(self.names) or 1

    def of(self, value: Any) -> list[float]:
        """The columns of one value."""
        if self.names:
            return [float(value == name) for name in self.names]
        return [self.above_all if value is None else float(value)]

    def knows(self, value: Any) -> bool:
        """Whether a value is one of those that were seen, or a number between them."""
        if self.names or value is None:
            return value in self.seen
        numbers = [number for number in self.seen if number is not None]
        return bool(min(numbers) <= value <= max(numbers))


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns each knob has, in order."""

    groups: tuple[Group, ...]

    def of(self, points: Sequence[Point]) -> Array:
        """One row for each point."""
        rows = [
            [number for group in self.groups for number in group.of(point[group.knob.key])]
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
    groups = (_group(knob, values.ordered(knob, (point[knob.key] for point in points))) for knob in knobs)
    return Columns(tuple(group for group in groups if group is not None))


def _group(knob: Knob, seen: list[Any]) -> Group | None:
    if len(seen) < 2:
        return None
    if values.is_number(knob):
        numbers = [float(value) for value in seen if value is not None]
        return Group(knob, (), tuple(seen), above_all=2 * max(map(abs, numbers)) + 1)
    return Group(knob, tuple(seen if len(seen) > 2 else seen[1:]), tuple(seen))
