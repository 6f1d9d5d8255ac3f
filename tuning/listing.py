"""Every point of a space, listed: first what decides which knobs act, then the values of those that do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

from tuning.activity import DECIDING, acts
from tuning.points import Point, Points, point_key

Cases = tuple[Point, ...]


def cases(points: Points) -> Cases:
    """Every layout with the values that decide which other knobs act; none comes twice."""
    named = (dict(zip(points.layout_keys, degrees, strict=True)) for degrees in points.layouts)
    found = [points.placed(values) for values in named]
    for key in (key for key in DECIDING if key in points.by_key):
        found = [case | {key: value} for case in found for value in _values(points, case, key)]
    return tuple(found)


def combinations(points: Points, deciding: Cases) -> int:
    """How many combinations there are before any rule, ranges on a small grid; what does not act does not count."""
    return sum(prod(map(len, _others(points, case).values())) for case in deciding)


def legal(points: Points, deciding: Cases) -> tuple[Point, ...]:
    """Every legal point once."""
    distinct = {point_key(point): point for point in _all(points, deciding)}
    return tuple(point for point in distinct.values() if points.problem(point) is None)


def _all(points: Points, deciding: Cases) -> Iterator[Point]:
    for case in deciding:
        others = _others(points, case)
        for values in itertools.product(*others.values()):
            yield points.settled(case | dict(zip(others, values, strict=True)))


def _others(points: Points, case: Point) -> dict[str, tuple[Any, ...]]:
    values = partial(_values, points, case)
    return {knob.key: values(knob.key) for knob in points.free_knobs if knob.key not in DECIDING}


def _values(points: Points, case: Point, key: str) -> tuple[Any, ...]:
    """Values of a knob; one that does not act has one."""
    now = points.base_values | case
    return points.by_key[key].grid() if acts(key, now) else (points.rest(key, now),)
