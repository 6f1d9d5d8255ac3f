"""Why each value of each axis of a layout was not taken: it is not legal, does not fit, or is slower by these terms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.config.errors import several
from tuning.predict.forecast import columns, terms
from tuning.predict.forecast_document import WORDS, percent
from tuning.predict.model import headroom
from tuning.predict.model.cases import Array
from tuning.predict.plan.layouts import (
    AXES,
    MOST_CHUNKS,
    MOST_MICRO_BATCH,
    RECOMPUTE,
    Points,
    Space,
    divisors,
)
from tuning.predict.target import Target

Verdict = Literal["best", "slower", "memory", "illegal"]
#: Terms are named that make up at least this share of what a family loses.
_SHARE = 0.25
#: Above it a probability of too little memory is not worth telling.
_HOPELESS = 0.95
#: Slower by less is as fast.
_EVEN = 0.005


@dataclass(frozen=True, slots=True)
class Family:
    """All layouts with one value on one axis. ``slower`` is over the best of all: 0.14 is 14 %.

    ``memory_ratio`` is what its smallest layout needs of a device. Both are None where there is no such layout.
    """

    axis: str
    value: str
    layouts: int
    verdict: Verdict
    reason: str
    step_seconds: float | None = None
    slower: float | None = None
    memory_ratio: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class _LayoutSearch(NamedTuple):
    """What is looked through, and what was found."""

    space: Space
    target: Target
    points: Points
    seconds: Array
    memory: Array
    probability: Array

    @property
    def safe_seconds(self) -> Array:
        """Infinite where a layout does not fit."""
        return np.where(self.probability <= headroom.SAFE, self.seconds, np.inf)


def families(
    space: Space, target: Target, points: Points, seconds: Array, memory: Array, probability: Array
) -> tuple[Family, ...]:
    """A line for each value of each axis."""
    searched = _LayoutSearch(space, target, points, seconds, memory, probability)
    return tuple(family for axis in AXES for family in _of_axis(searched, axis))


def _of_axis(searched: _LayoutSearch, axis: str) -> Iterator[Family]:
    column = searched.points[:, AXES.index(axis)]
    for value in _values(searched.space, axis):
        rows = np.flatnonzero(column == value)
        name = RECOMPUTE[value] if axis == "recompute" else str(value)
        if len(rows):
            yield _compare_family(searched, axis, name, rows)
        else:
            yield Family(axis, name, 0, "illegal", _illegal(searched.space, axis, value))


def _values(space: Space, axis: str) -> list[int]:
    degrees = divisors(space.ranks)
    return {
        "zero_stage": list(range(4)),
        "recompute": list(RECOMPUTE),
        "micro_batch": divisors(space.base.batch.global_batch, MOST_MICRO_BATCH),
        "chunks": list(range(1, min(MOST_CHUNKS, space.shape.layers) + 1)),
    }.get(axis, degrees)


def _compare_family(searched: _LayoutSearch, axis: str, name: str, rows: NDArray[np.intp]) -> Family:
    """Of a family with layouts: its fastest one beside the fastest of all."""
    seconds = searched.safe_seconds
    own_row, best = int(rows[np.argmin(seconds[rows])]), int(np.argmin(seconds))
    needs = float(searched.memory[rows].min() / searched.target.memory_bytes)
    if not np.isfinite(seconds[own_row]):
        least = float(searched.probability[rows].min())
        reason = f"needs {needs:.1f} times the memory of a device"
        if least < _HOPELESS:
            reason = (
                f"needs {percent(needs)} of a device's memory or more: out of memory with {percent(least)}"
            )
        return Family(axis, name, len(rows), "memory", reason, memory_ratio=needs)
    slower = float(seconds[own_row] / seconds[best] - 1)
    took = searched.points[best, AXES.index(axis)] == searched.points[own_row, AXES.index(axis)]
    verdict: Verdict = "best" if took else "slower"
    reason = "the best" if took else _slower(searched, own_row, best, slower)
    return Family(axis, name, len(rows), verdict, reason, float(seconds[own_row]), slower, needs)


def _slower(searched: _LayoutSearch, own_row: int, best: int, slower: float) -> str:
    if slower < _EVEN:
        return "as fast"
    cases = searched.space.cases(searched.points[[own_row, best]])
    parts = columns(cases, searched.target, searched.space.base.precision).breakdown
    text = " and ".join(WORDS[name] for name, _ in lost_terms(terms(parts, 0), terms(parts, 1)))
    return f"{percent(slower)} slower: {text}"


def lost_terms(own_terms: dict[str, float], best: dict[str, float]) -> list[tuple[str, float]]:
    """Terms by which one step is longer than another, most first, with their seconds: those that matter."""
    losses = sorted(((own_terms[name] - best[name], name) for name in own_terms), reverse=True)
    whole = sum(seconds for seconds, _ in losses if seconds > 0)
    return [(name, seconds) for seconds, name in losses if seconds > 0 and seconds >= _SHARE * whole]


def _illegal(space: Space, axis: str, value: int) -> str:
    shape, batch = space.shape, space.base.batch.global_batch
    if axis == "tp":
        for divided, size in space.divided_by_tp.items():
            if size % value:
                return f"{size:,} {divided} do not divide"
    if axis == "pp" and value > shape.layers:
        return f"more stages than {several(shape.layers, 'layers')}"
    if axis == "dp" and batch % value:
        return f"{batch:,} sequences do not divide"
    if axis == "chunks":
        return f"{shape.layers:,} layers do not fall evenly on its stages, or micro-batches on its rounds"
    return "nothing that it leaves to the other degrees is legal"
