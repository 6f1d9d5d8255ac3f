"""What experience would try first: before a sampler knows anything, or while nothing has fitted yet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import prod
from typing import Any

from engine.config.knobs.facts import AUTO
from engine.config.run_config import AUTOMATIC
from tuning.space.knobs import Knob
from tuning.space.points import RANKS, Point
from tuning.space.space import Space

Tries = list[tuple[Point, str]]
#: How the axes of a layout are called.
AXES = {
    "parallel.tp": "tensor",
    "parallel.pp": "pipeline",
    "parallel.cp": "context",
    "parallel.ep": "expert",
}


def first_tries(space: Space, trials: int) -> Tries:
    """A few points that experience would try first: a larger micro-batch, then a little of each kind of parallelism;
    of a command one thing at a time, since its trials may be few.
    """
    start = space.degrees(space.baseline[0])
    tries = [(_largest(space, start), "the largest micro-batch that divides")]
    for place, key in enumerate(space.layout_keys):
        first = _first_degree(space)
        usual = [degrees for degrees in space.layouts if degrees[:first] == start[:first]]
        alone = [degrees for degrees in usual if prod(degrees[first:]) == degrees[place] > 1]
        if alone and key in AXES:
            tries.append((_largest(space, min(alone)), f"the least {AXES[key]} parallelism"))
    legal = [*_of_a_command(space), *((point, why) for point, why in tries if point is not None)]
    return legal[: most(trials)]


def most(trials: int) -> int:
    """So many first tries has a study of so many trials."""
    return max(1, (trials - 1) // 3)


def fitting_tries(space: Space, trials: int) -> Tries:
    """Where plain data parallel ran out of memory: less of it step by step, until something runs. The smallest
    micro-batch, the most sharding, recomputation, then layouts that split the model, the most split first.
    """
    plain = _plain(space)
    saving: Point = {}
    fitting: Tries = []
    for key, least_memory, words in _SAVING:
        if (knob := space.by_key.get(key)) is not None:
            saving[key] = least_memory(knob.grid())
            fitting += _tries(space, plain | saving, f"to fit first: {words}")
    start, first = space.degrees(space.baseline[0]), _first_degree(space)
    for degrees in sorted(
        space.layouts, key=lambda layout: (prod(layout[first:]), layout[:first]), reverse=True
    ):
        if degrees != start:
            point = plain | dict(zip(space.layout_keys, degrees, strict=True)) | saving
            fitting += _tries(space, point, "to fit first: the model split")
    return fitting[: most(trials)]


def _of_a_command(space: Space) -> Tries:
    """Less recomputation and larger micro-batches, with all else as the command has it today."""
    tries, today = Tries(), space.baseline[0]
    recompute, size = space.by_key.get("trainer.recompute"), space.by_key.get("trainer.micro_batch")
    less = [value for value in recompute.grid() if value in (False, "none")] if recompute else []
    if recompute and less and today.get(recompute.key) not in less:
        tries += _tries(space, today | {recompute.key: less[0]}, "without recomputation, all else as it is")
    now = today.get(size.key) if size else None
    if size and isinstance(now, int | float):
        larger = sorted(
            (
                candidate
                for candidate in size.grid()
                if isinstance(candidate, int | float) and candidate > now
            ),
            reverse=True,
        )
        for candidate in larger[:2]:
            tries += _tries(space, today | {size.key: candidate}, "a larger micro-batch, all else as it is")
    return tries


def _most_recomputation(values: Collection[str]) -> str:
    return next(value for value in ("full", "selective", *values) if value in values)


#: What saves memory, in the order of what it costs: the value of a knob that needs least.
_SAVING: tuple[tuple[str, Callable[[Collection[Any]], Any], str], ...] = (
    ("batch.micro_batch", min, "the smallest micro-batch"),
    ("parallel.zero_stage", max, "the most sharding"),
    ("memory.recompute", _most_recomputation, "recomputation"),
)


def _first_degree(space: Space) -> int:
    """Where the degrees of a layout begin, after its ranks where they are turned."""
    return 1 if RANKS in space.layout_keys else 0


def _plain(space: Space) -> Point:
    """The baseline with the nearest values of the space, in which it need not be."""
    return space.baseline[0] | {
        knob.key: _nearest(knob, space.baseline[0].get(knob.key)) for knob in space.free_knobs
    }


def _nearest(knob: Knob, value: Any) -> Any:
    if knob.contains(value):
        return value
    numbers = [number for number in knob.grid() if isinstance(number, int | float)]
    if not numbers or not isinstance(value, int | float):
        return knob.grid()[0]
    return min(numbers, key=lambda number: abs(number - value))


def automatic_point(space: Space) -> Point:
    """What can be: formulas have it no slower than what it is chosen from."""
    return {key: AUTO for key in AUTOMATIC if key in space.by_key and space.by_key[key].contains(AUTO)}


def _tries(space: Space, values: Point, why: str) -> Tries:
    point = space.point(values)
    return [] if space.why_outside(point) or space.problem(point) else [(point, why)]


def _largest(space: Space, degrees: tuple[int, ...]) -> Point | None:
    if degrees not in space.layouts:
        return None
    plain = _plain(space) | dict(zip(space.layout_keys, degrees, strict=True)) | automatic_point(space)
    knob = space.by_key.get("batch.micro_batch")
    sizes = sorted(knob.grid(), reverse=True) if knob else [space.base.batch.micro_batch]
    points = [space.point(plain | {"batch.micro_batch": size}) for size in sizes]
    return next(
        (point for point in points if not space.why_outside(point) and not space.problem(point)), None
    )
