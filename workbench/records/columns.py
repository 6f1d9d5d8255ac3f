"""Columns of records: decoded when a figure asks for them, followed as a file grows, brought together by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import reduce
from threading import Lock
from typing import Any, Protocol

import numpy as np

from profilers.records.table import Table

Array = np.ndarray[Any, np.dtype[Any]]
#: Fields of one stream of one rank; what was absent is NaN.
Columns = Mapping[str, Array]


class LazyColumns(Mapping[str, Array]):
    """Columns that are made when they are asked for, each once: ``make`` returns the values of a name."""

    def __init__(self, names: Sequence[str], make_column: Callable[[str], Array]) -> None:
        self._names, self._make = names, make_column
        self._columns: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._columns:
            if name not in self._names:
                raise KeyError(name)
            self._columns[name] = self._make(name)
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class RecordFollower(Protocol):
    """A record file, piece by piece."""

    def read_new(self) -> Table: ...

    @property
    def problems(self) -> list[str]: ...


class Stream:
    """One record file, followed. What ``refresh`` returned stays as it was, whatever is written later."""

    def __init__(self, tail: RecordFollower) -> None:
        self.tail = tail
        self._tables: list[Table] = []
        self._count = 0
        self._buffers: dict[str, _Buffer] = {}
        self._lock = Lock()

    def refresh(self) -> Columns:
        """All records that are there by now; absent values are NaN, absent names are empty."""
        table = self.tail.read_new()
        with self._lock:
            if len(table) or not self._tables:
                self._tables.append(table)
            self._count += len(table)
            count, names = self._count, [field.name for field in fields(self._tables[0].record_class)]
        return LazyColumns(names, lambda name: self._column(name, count))

    def _column(self, name: str, count: int) -> Array:
        """The first ``count`` values of a field."""
        with self._lock:
            return self._buffers.setdefault(name, _Buffer()).values(self._tables, name)[:count]


class _Buffer:
    """One column, in an array that doubles when it is full: adding a record costs the same however many there are."""

    def __init__(self) -> None:
        self._array: Array | None = None
        self._count = 0
        self._tables = 0

    def values(self, tables: list[Table], name: str) -> Array:
        for table in tables[self._tables :]:
            self._add(fill_missing(table, name))
        self._tables = len(tables)
        assert self._array is not None
        return self._array[: self._count]

    def _add(self, new: Array) -> None:
        if self._array is None:
            self._array = new
        else:
            size_needed, kind = self._count + len(new), np.result_type(self._array, new)
            if size_needed > len(self._array) or kind != self._array.dtype:
                larger = np.empty(max(size_needed, 2 * self._count), dtype=kind)
                larger[: self._count] = self._array[: self._count]
                self._array = larger
            self._array[self._count : size_needed] = new
        self._count += len(new)


def fill_missing(table: Table, name: str) -> Array:
    """A column with NaN where nothing was read; names and flags keep their own empty value."""
    column: Any = table.column(name)
    if not np.ma.is_masked(column):
        return np.asarray(column.data)
    if column.dtype.kind in "iu":
        column = column.astype(float)
    filler: Any = np.nan if column.dtype.kind == "f" else "" if column.dtype.kind == "U" else 0
    return np.asarray(column.filled(filler))


def common_steps(ranks: Sequence[Array]) -> Array:
    """The steps that every rank has; ``ranks`` hold ascending step numbers."""
    if not ranks or not all(map(len, ranks)):
        return np.empty(0, dtype=np.int64)
    first, last = max(steps[0] for steps in ranks), min(steps[-1] for steps in ranks)
    steps_in_range = [
        steps[np.searchsorted(steps, first) : np.searchsorted(steps, last, "right")] for steps in ranks
    ]
    if all(
        np.array_equal(steps_in_range[0], steps) for steps in steps_in_range[1:]
    ):  # the usual case, without sorting
        return steps_in_range[0]
    return np.asarray(reduce(np.intersect1d, steps_in_range))


def rows_of(steps: Array, wanted: Array) -> slice | Array:
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


def pick_columns(ranks: Sequence[Columns], steps: Array, pick: Array) -> Columns:
    """Columns over ``steps`` in which each value is that of one of the ranks; ``pick`` says whose."""
    rows = [rows_of(columns["step"], steps) for columns in ranks]
    masks = [pick == place for place in range(len(ranks))]

    def of_picked_ranks(name: str) -> Array:
        values = [columns[name][places] for columns, places in zip(ranks, rows, strict=True)]
        if len(values) == 1:
            return values[0]
        column = np.empty(len(steps), dtype=np.result_type(*values))
        for chosen, of_rank in zip(masks, values, strict=True):
            np.copyto(column, of_rank, where=chosen)
        return column

    return LazyColumns(list(ranks[0]), lambda name: steps if name == "step" else of_picked_ranks(name))


def stretch_length(count: int, most: int) -> int:
    """How long stretches of a series are, of which there are at most ``most``: a power of two, so that all but the last
    one stay as they are until the series is twice as long.
    """
    return 1 << (-(-count // most) - 1).bit_length() if count > most else 1


def slowest_rank(steps: Mapping[int, Columns]) -> Columns:
    """For each step that all ranks have written, the columns of the rank that took longest."""
    ranks = [columns for columns in steps.values() if len(columns.get("step", ()))]
    if not ranks:
        return {}
    common = common_steps([columns["step"] for columns in ranks])
    seconds = np.stack([columns["step_seconds"][rows_of(columns["step"], common)] for columns in ranks])
    return pick_columns(ranks, common, seconds.argmax(axis=0) if len(common) else common)
