"""Columns that grow with a record file: decoded when a figure asks for them, and only what is new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from threading import Lock
from typing import Any

import numpy as np

from profilers.records.reader import Tail
from profilers.records.table import Table
from workbench.records.joined import Columns

_Values = np.ndarray[Any, np.dtype[Any]]


class Stream:
    """One record file, followed. What ``refresh`` returned stays as it was, whatever is written later."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self._tables: list[Table] = []
        self._count = 0
        self._grown: dict[str, _Grown] = {}
        self._lock = Lock()

    def refresh(self) -> Columns:
        """All records that are there by now; absent values are NaN, absent names are empty."""
        table = self.tail.read_new()
        with self._lock:
            if len(table) or not self._tables:
                self._tables.append(table)
            self._count += len(table)
            names = [field.name for field in fields(self._tables[0].record_class)]
            return _View(self, names, self._count)

    def column(self, name: str, count: int) -> _Values:
        """The first ``count`` values of a field."""
        with self._lock:
            return self._grown.setdefault(name, _Grown()).values(self._tables, name)[:count]


class _View(Mapping[str, _Values]):
    """The columns of a stream as they stood at one moment."""

    def __init__(self, stream: Stream, names: list[str], count: int) -> None:
        self._stream, self._names, self._count = stream, names, count

    def __getitem__(self, name: str) -> _Values:
        if name not in self._names:
            raise KeyError(name)
        return self._stream.column(name, self._count)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Grown:
    """One column, in a buffer that doubles when it is full: adding a record costs the same however many there are."""

    def __init__(self) -> None:
        self._buffer: _Values | None = None
        self._count = 0
        self._tables = 0

    def values(self, tables: list[Table], name: str) -> _Values:
        for table in tables[self._tables :]:
            self._add(filled(table, name))
        self._tables = len(tables)
        assert self._buffer is not None
        return self._buffer[: self._count]

    def _add(self, new: _Values) -> None:
        if self._buffer is None:
            self._buffer = new
        else:
            needed, kind = self._count + len(new), np.result_type(self._buffer, new)
            if needed > len(self._buffer) or kind != self._buffer.dtype:
                larger = np.empty(max(needed, 2 * self._count), dtype=kind)
                larger[: self._count] = self._buffer[: self._count]
                self._buffer = larger
            self._buffer[self._count : needed] = new
        self._count += len(new)


def filled(table: Table, name: str) -> _Values:
    """A column with NaN where nothing was read; names and flags keep their own empty value."""
    column: Any = table.column(name)
    if not np.ma.is_masked(column):
        return np.asarray(column.data)
    if column.dtype.kind in "iu":
        column = column.astype(float)
    filler: Any = np.nan if column.dtype.kind == "f" else "" if column.dtype.kind == "U" else 0
    return np.asarray(column.filled(filler))
