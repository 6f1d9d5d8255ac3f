"""Which of two points is simpler. Pure."""

from __future__ import annotations

from tuning.points import PLAIN, TURNED_DEGREES, WORLD_DEGREES, Point, Points

_DERIVED = "parallel.dp"
_AXES = frozenset((*WORLD_DEGREES, *TURNED_DEGREES))


def complexity(points: Points, point: Point) -> int:
    """Axes of parallelism beside data parallel, plus the knobs that are turned away from their plain value.

    A degree above 1 is an axis. The plain value of a knob is that of plain data parallel (``points.PLAIN``: no ZeRO, no
    compression, no recomputation ..), of any other knob the one of the study's base. What does not act does not count.
    """
    return len(what_is_turned(points, point))


def what_is_turned(points: Points, point: Point) -> list[str]:
    """The keys that :func:`complexity` counts."""
    acting = [key for key in point if key != _DERIVED and points.is_active(key, point)]
    return [key for key in acting if point[key] != _plain(points, key)]


def _plain(points: Points, key: str) -> object:
    return 1 if key in _AXES else PLAIN.get(key, points.base_values[key])
