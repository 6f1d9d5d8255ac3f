"""The space of a study: which points are legal, which one is drawn, and where the baseline stands."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from random import Random
from typing import Any, TypeVar

from engine.config.errors import InputError
from tuning import listing
from tuning.baseline import plain_or_nearest
from tuning.knobs import STUDY_KEYS, Knob
from tuning.labels import label
from tuning.points import WORLD_DEGREES, Point, Points, point_key

#: Larger spaces are never listed; their points are drawn and counted by sampling.
ENUMERATION_LIMIT = 60_000
DRAWS = 300
Result = TypeVar("Result")


def everything(_: Point) -> bool:
    """The wish of somebody who takes any point."""
    return True


class Space(Points):
    """Every configuration that a study may measure."""

    @cached_property
    def _cases(self) -> listing.Cases:
        return listing.cases(self)

    @cached_property
    def combinations(self) -> int:
        """How many combinations there are before any rule, ranges on a small grid; what does not act does not count."""
        return listing.combinations(self, self._cases)

    @property
    def is_listed(self) -> bool:
        """Whether the space is small enough for its legal points to be listed."""
        return self.combinations <= ENUMERATION_LIMIT

    @cached_property
    def legal_points(self) -> tuple[Point, ...]:
        """Every legal point, ranges on a small grid; empty when the space is too large to list."""
        return listing.legal(self, self._cases) if self.is_listed else ()

    @cached_property
    def legal_by_key(self) -> dict[str, Point]:
        """Every legal point by its key."""
        return {point_key(point): point for point in self.legal_points}

    @cached_property
    def _known(self) -> dict[tuple[str, int], Any]:
        return {}

    def once(self, what: str, count: int, make: Callable[[Space, int], Result]) -> Result:
        """What ``make`` says of this space and a count, worked out once."""
        if (what, count) not in self._known:
            self._known[what, count] = make(self, count)
        result: Result = self._known[what, count]
        return result

    def random_point(
        self, random: Random, visited: Collection[str], wanted: Callable[[Point], bool] = everything
    ) -> Point | None:
        """A legal, wanted point that was not visited yet, or None when there seems to be none left."""
        for _ in range(DRAWS if self.layouts else 0):
            values = {knob.key: _draw(knob, random) for knob in self.free_knobs}
            values |= zip(self.layout_keys, random.choice(self.layouts), strict=True)
            point = self.point(values)
            if point_key(point) not in visited and wanted(point) and self.problem(point) is None:
                return point
        left = [point for key, point in self.legal_by_key.items() if key not in visited and wanted(point)]
        return random.choice(left) if left else None

    def completed(self, values: Point) -> Point:
        """A full point from some keys; the others stand as in the baseline.

        Raises:
            InputError: a key or value is not in the space, or the point is illegal.
        """
        for key, value in values.items():
            if key not in self.by_key and key != "parallel.dp":
                raise InputError(key, value, f"is not turned by this study; known: {', '.join(self.by_key)}")
        full = {key: value for key, value in (self.baseline[0] | values).items() if key != "parallel.dp"}
        own = {key: full.pop(key) for key in STUDY_KEYS if key in full}
        checked = self.base.with_values(full).flat() | own
        self._check_world(values, checked)
        point = self.point(checked)
        broken = self.outside(point) or self.problem(point)
        if broken:
            raise InputError("enqueue", self.label(point), broken)
        return point

    def _check_world(self, given: Point, values: Point) -> None:
        dp = given.get("parallel.dp", self.data_parallel(values))
        if dp != self.data_parallel(values) or not self.fits(values):
            degrees = " x ".join(str(degree) for degree in (dp, *(values[key] for key in WORLD_DEGREES)))
            remedy = f"dp x tp x pp x cp must be the study's {self.ranks_of(values)} ranks"
            raise InputError("parallel", degrees, remedy)

    def label(self, point: Point) -> str:
        """A point in a few words."""
        return label(self, point)

    @cached_property
    def baseline(self) -> tuple[Point, str]:
        """Plain data parallel, or the legal point nearest to it; and a note when it is not quite that.

        Raises:
            InputError: no point of the space can run.
        """
        point, broken = plain_or_nearest(self)
        if broken is None:
            return point, ""
        return point, f"plain data parallel is not legal here ({broken}); nearest: {self.label(point)}"


def _draw(knob: Knob, random: Random) -> Any:
    return knob.at(random.random()) if knob.is_range else random.choice(knob.choices)
