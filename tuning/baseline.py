"""The yardstick of a study: plain data parallel, or the legal point nearest to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import prod

from engine.config.errors import InputError
from tuning.points import PLAIN, RANKS, Point, Points

ALONE: Point = {"parallel.tp": 1, "parallel.pp": 1, "parallel.cp": 1, "parallel.ep": 1}


def plain_or_nearest(points: Points) -> tuple[Point, str | None]:
    """The baseline; and which rule plain data parallel breaks, where it is not quite that.

    Raises:
        InputError: no point near to it can run either.
    """
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


def _plain(points: Points, degrees: Point, micro_batch: int) -> Point:
    """May stand outside the space: the yardstick does not depend on what is searched."""
    layout = {key: degrees.get(key, points.base_values[key]) for key in points.layout_keys}
    changed = (PLAIN if points.ranks > 1 else {}) | {"batch.micro_batch": micro_batch}
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
