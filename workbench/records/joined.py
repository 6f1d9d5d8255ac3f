"""Columns of several ranks brought together by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
#: Fields of one stream of one rank; what was absent is NaN.
Columns = Mapping[str, Array]
_Rows = slice | Array


def common_steps(ranks: Sequence[Array]) -> Array:
    """The steps that every rank has; ``ranks`` hold ascending step numbers."""
    if not ranks or not all(map(len, ranks)):
        return np.empty(0, dtype=np.int64)
    first, last = max(steps[0] for steps in ranks), min(steps[-1] for steps in ranks)
    within = [steps[np.searchsorted(steps, first) : np.searchsorted(steps, last, "right")] for steps in ranks]
    if all(np.array_equal(within[0], steps) for steps in within[1:]):  # the usual case, without sorting
        return within[0]
    return np.asarray(reduce(np.intersect1d, within))


def rows_of(steps: Array, wanted: Array) -> _Rows:
    """Where the ``wanted`` steps lie among a rank's; all of them are there."""
    first = int(np.searchsorted(steps, wanted[0])) if len(wanted) else 0
    stretch = slice(first, first + len(wanted))
    return stretch if np.array_equal(steps[stretch], wanted) else np.searchsorted(steps, wanted)


def means_by_step(steps: Array, values: Array) -> tuple[Array, Array]:
    """Each step that occurs, in ascending order, and the mean of its values."""
    if not len(steps):
        return steps, values
    first, span = steps.min(), int(steps.max()) - int(steps.min()) + 1
    if span <= 2 * len(steps):  # as good as without gaps: counting needs no sorting
        counts = np.bincount(steps - first, minlength=span)
        numbers = np.flatnonzero(counts)
        return first + numbers, np.bincount(steps - first, values)[numbers] / counts[numbers]
    numbers, place = np.unique(steps, return_inverse=True)
    return numbers, np.bincount(place, values) / np.bincount(place)


class PickedColumns(Mapping[str, Array]):
    """Columns over ``steps`` in which each value is that of one of the ranks; ``pick`` says whose.

    A column is made when it is asked for.
    """

    def __init__(self, ranks: Sequence[Mapping[str, Array]], steps: Array, pick: Array) -> None:
        self._ranks = ranks
        self._rows = [rows_of(columns["step"], steps) for columns in ranks]
        self._chosen = [pick == place for place in range(len(ranks))]
        self._made: dict[str, Array] = {"step": steps}

    def __getitem__(self, name: str) -> Array:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ranks[0])

    def __len__(self) -> int:
        return len(self._ranks[0])

    def _make(self, name: str) -> Array:
        values = [columns[name][rows] for columns, rows in zip(self._ranks, self._rows, strict=True)]
        if len(values) == 1:
            return values[0]
        made = np.empty(len(self._made["step"]), dtype=np.result_type(*values))
        for chosen, of_rank in zip(self._chosen, values, strict=True):
            np.copyto(made, of_rank, where=chosen)
        return made
