"""The space of a study: its legal points, a random one, all of them listed, and the baseline.

Points are listed by what decides which knobs act first, then by the values of those that do. The baseline is plain
data parallelism, or the legal point nearest to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from functools import cached_property, partial
from math import prod
from random import Random
from typing import Any, TypeVar

from engine.config.errors import InputError, several
from engine.config.knobs.catalogue import acts, baseline_values, facts_of
from tuning.space.knobs import STUDY_KEYS, Knob
from tuning.space.labels import label
from tuning.space.points import RANKS, WORLD_DEGREES, Point, Points, point_key

Cases = tuple[Point, ...]


def cases(points: Points) -> Cases:
    """Every layout with the values that decide which other knobs act; none comes twice."""
    named = (dict(zip(points.layout_keys, degrees, strict=True)) for degrees in points.layouts)
    partial = [points.layout_part(values) for values in named]
    for key in (key for key in points.deciding if key in points.by_key):
        partial = [case | {key: value} for case in partial for value in _values(points, case, key)]
    return tuple(partial)


def count_combinations(points: Points, deciding: Cases) -> int:
    """How many combinations there are before any rule, ranges on a small grid; what does not act does not count."""
    return sum(prod(map(len, _others(points, case).values())) for case in deciding)


def legal(points: Points, deciding: Cases) -> tuple[Point, ...]:
    """Every legal point once."""
    distinct = {point_key(point): point for point in _enumerate_points(points, deciding)}
    return tuple(point for point in distinct.values() if points.problem(point) is None)


def _enumerate_points(points: Points, deciding: Cases) -> Iterator[Point]:
    for case in deciding:
        others = _others(points, case)
        for values in itertools.product(*others.values()):
            yield points.canonical_point(case | dict(zip(others, values, strict=True)))


def _others(points: Points, case: Point) -> dict[str, tuple[Any, ...]]:
    values = partial(_values, points, case)
    return {knob.key: values(knob.key) for knob in points.free_knobs if knob.key not in points.deciding}


def _values(points: Points, case: Point, key: str) -> tuple[Any, ...]:
    """Values of a knob; one that does not act has one."""
    now = points.base_values | case
    return points.by_key[key].grid() if acts(key, now) else (points.inactive_value(key, now),)


ALONE: Point = {"parallel.tp": 1, "parallel.pp": 1, "parallel.cp": 1, "parallel.ep": 1}


def plain_or_nearest(points: Points) -> tuple[Point, str | None]:
    """The baseline; and which rule plain data parallel breaks, where it is not quite that.

    Raises:
        InputError: no point near to it can run either; the base as it stands cannot, where that is the baseline.
    """
    if points.as_it_stands:
        return _base(points), None
    if not points.fits({key: 1 for key in points.layout_keys if key != RANKS}):
        cp = points.base.parallel.cp
        raise InputError("base.parallel.cp", cp, f"must divide ranks={points.ranks}")
    wanted = _plain(points, ALONE, points.base.batch.micro_batch)
    broken = points.problem(wanted)
    if broken is None:
        return wanted, None
    for point in _candidates(points):
        if points.problem(point) is None:
            return point, broken
    raise InputError("space", None, f"no configuration in it can run; the plainest breaks a rule: {broken}")


def _base(points: Points) -> Point:
    point = points.point(points.base_values)
    if broken := points.problem(point):
        raise InputError("base", None, f"cannot run, and a run is tuned from what it begins with: {broken}")
    return point


def _plain(points: Points, degrees: Point, micro_batch: int) -> Point:
    """May stand outside the space: the yardstick does not depend on what is searched."""
    layout = {key: degrees.get(key, points.base_values[key]) for key in points.layout_keys}
    changed = (baseline_values() if points.ranks > 1 else {}) | {"batch.micro_batch": micro_batch}
    return {
        **{"parallel.dp": points.data_parallel(layout)},
        **layout,
        **{knob.key: points.base_values[knob.key] for knob in points.free_knobs},
        **{
            key: value
            for key, value in changed.items()
            if points.base_values.get(key, value) != value or key in points.by_key
        },
    }


def _candidates(points: Points) -> Iterator[Point]:
    """From the fewest ranks that hold parts of a model on; context parallelism first, which only splits tokens."""
    wanted = points.base.batch.micro_batch
    sizes = sorted({wanted, *range(1, wanted + 1), *points.choices("batch.micro_batch")})
    sizes.sort(key=lambda size: (abs(size - wanted), size))
    keys = [key for key in points.layout_keys if key not in ("parallel.ep", RANKS)]
    divisors = [degree for degree in range(1, points.ranks + 1) if points.ranks % degree == 0]
    grids = itertools.product(divisors, repeat=len(keys))
    for degrees in sorted(grids, key=lambda degrees: (prod(degrees), degrees)):
        layout = ALONE | dict(zip(keys, degrees, strict=True))
        if points.fits({key: layout[key] for key in keys}):
            yield from (_plain(points, layout, size) for size in sizes)


#: Larger spaces are never listed; their points are drawn and counted by sampling.
ENUMERATION_LIMIT = 60_000
DRAWS = 300
Result = TypeVar("Result")


def any_point(_: Point) -> bool:
    """The wish of somebody who takes any point."""
    return True


class Space(Points):
    """Every configuration that a study may measure."""

    @cached_property
    def _cases(self) -> Cases:
        return cases(self)

    @cached_property
    def combinations(self) -> int:
        """How many combinations there are before any rule, ranges on a small grid; what does not act does not count."""
        return count_combinations(self, self._cases)

    @cached_property
    def idle(self) -> tuple[str, ...]:
        """Knobs that act at no point: the same runs come out, whatever their values."""
        free = (knob.key for knob in self.free_knobs if len(knob.grid()) > 1)
        return tuple(
            key for key in free if not any(acts(key, self.base_values | case) for case in self._cases)
        )

    @property
    def is_listed(self) -> bool:
        """Whether the space is small enough for its legal points to be listed."""
        return self.combinations <= ENUMERATION_LIMIT

    @cached_property
    def legal_points(self) -> tuple[Point, ...]:
        """Every legal point, ranges on a small grid; empty when the space is too large to list."""
        return legal(self, self._cases) if self.is_listed else ()

    @cached_property
    def legal_by_key(self) -> dict[str, Point]:
        """Every legal point by its key."""
        return {point_key(point): point for point in self.legal_points}

    @cached_property
    def _memo(self) -> dict[tuple[str, int], Any]:
        return {}

    def once(self, question: str, count: int, make: Callable[[Space, int], Result]) -> Result:
        """What ``make`` says of this space and a count, worked out once."""
        if (question, count) not in self._memo:
            self._memo[question, count] = make(self, count)
        result: Result = self._memo[question, count]
        return result

    def random_point(
        self, random: Random, visited: Collection[str], wanted: Callable[[Point], bool] = any_point
    ) -> Point | None:
        """A legal, wanted point that was not visited yet, or None when there seems to be none left."""
        for _ in range(DRAWS if self.layouts else 0):
            values = {knob.key: _draw(knob, random) for knob in self.free_knobs}
            values |= zip(self.layout_keys, random.choice(self.layouts), strict=True)
            point = self.point(values)
            if point_key(point) not in visited and wanted(point) and self.problem(point) is None:
                return point
        unvisited = [
            point for key, point in self.legal_by_key.items() if key not in visited and wanted(point)
        ]
        return random.choice(unvisited) if unvisited else None

    def complete(self, values: Point) -> Point:
        """A full point from some keys; the others stand as in the baseline.

        Raises:
            InputError: a key or value is not in the space, or the point is illegal.
        """
        fixed = self.base_values | self.baseline[0]
        for key, value in values.items():
            if key in self.by_key or key == "parallel.dp" or (key in fixed and fixed[key] == value):
                continue
            stays = f" and stays {fixed[key]!r}" if key in fixed else ""
            raise InputError(
                key, value, f"is not turned by this study{stays}; known: {', '.join(self.by_key)}"
            )
        full = {key: value for key, value in (self.baseline[0] | values).items() if key != "parallel.dp"}
        extra = {key: full.pop(key) for key in (*STUDY_KEYS, *self.automatic_keys(full)) if key in full}
        checked = self.base.with_values(full).flat() | extra
        self._check_world(values, checked)
        point = self.point(checked)
        broken = self.why_outside(point) or self.problem(point)
        if broken:
            raise InputError("enqueue", self.label(point), broken)
        return point

    def _check_world(self, point: Point, values: Point) -> None:
        dp = point.get("parallel.dp", self.data_parallel(values))
        if dp != self.data_parallel(values) or not self.fits(values):
            degrees = " x ".join(str(degree) for degree in (dp, *(values[key] for key in WORLD_DEGREES)))
            remedy = f"dp x tp x pp x cp must be the study's {several(self.ranks_of(values), 'ranks')}"
            raise InputError("parallel", degrees, remedy)

    def less_lossy(self, point: Point, least: bool = False) -> Iterator[Point]:
        """Legal points with one knob at the nearest value that loses less, or at the one that loses ``least``; a range
        is looked at on its small grid.
        """
        values = self.base_values | point
        for knob in self.free_knobs:
            way, now = facts_of(knob.key).loses_more, values.get(knob.key)
            if not way or now is None or not acts(knob.key, values):
                continue
            numbers = [value for value in knob.grid() if value is not None]
            less = [value for value in numbers if (value > now if way == "lower" else value < now)]
            for value in sorted(less, key=lambda value: abs(value - now), reverse=least):
                gentler = self.point(values | {knob.key: value})
                if not self.why_outside(gentler) and self.problem(gentler) is None:
                    yield gentler
                    break

    def label(self, point: Point) -> str:
        """A point in a few words."""
        return label(self, point)

    @cached_property
    def baseline(self) -> tuple[Point, str]:
        """Plain data parallel, or the legal point nearest to it, and a note when it is not quite that. A run that goes
        on is its own baseline.

        Raises:
            InputError: no point of the space can run, or that one cannot.
        """
        point, broken = plain_or_nearest(self)
        if broken is None:
            return point, ""
        return point, f"plain data parallel is not legal here ({broken}); nearest: {self.label(point)}"


def _draw(knob: Knob, random: Random) -> Any:
    return knob.interpolate(random.random()) if knob.is_range else random.choice(knob.choices)
