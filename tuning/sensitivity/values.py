"""The values of a knob in order, and a point with one knob moved to another value. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tuning.knobs import Knob
from tuning.points import Point
from tuning.space import Space


def is_number(knob: Knob) -> bool:
    """Whether a knob's values have an order: numbers, or numbers and a missing one that means all there are."""
    known = [choice for choice in knob.choices if choice is not None]
    numbers = all(isinstance(choice, int | float) and not isinstance(choice, bool) for choice in known)
    return knob.is_range or (numbers and bool(known))


def ordered(knob: Knob, values: Iterable[Any]) -> list[Any]:
    """Different values in their order: numbers by size with the missing one last, others as the study lists them."""
    found = list(dict.fromkeys(values))
    if is_number(knob):
        return sorted(found, key=lambda value: (value is None, value if value is not None else 0))
    return sorted(found, key=knob.choices.index if set(found) <= set(knob.choices) else str)


def moved(space: Space, point: Point, key: str, value: Any) -> tuple[Point | None, str]:
    """A point with one knob at another value; None with the reason where that cannot run, or without where it is the
    same run.
    """
    values = {name: now for name, now in point.items() if name != "parallel.dp"} | {key: value}
    if not space.fits(values):
        return None, f"its degrees do not divide {space.ranks} ranks"
    made = space.point(values)
    if made.get(key) != value or made == point:
        return None, ""
    broken = space.problem(made)
    return (None, broken) if broken else (made, "")
