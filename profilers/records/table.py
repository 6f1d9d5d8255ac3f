"""Records of one stream as columns; what was absent, damaged or not finite is masked."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from profilers.records.codec import Field, fields_of
from profilers.records.names import LAST_ID, Names
from profilers.records.schema import STREAMS, FixedRecord

Column = np.ma.MaskedArray[Any, np.dtype[Any]]

_EMPTY_DTYPE = {"int64": "<i8", "float64": "<f8", "bool": "?", "name": "<U1"}
#: Record class -> field -> kind, once: a summary asks for the columns of many tables without a file.
_KINDS = {
    record_class: {field.name: field.base for field in fields_of(record_class)}
    for record_class in STREAMS.values()
}


class Table:
    """Some records of one process and stream. A field that its file does not have is masked throughout."""

    def __init__(
        self,
        record_class: type[FixedRecord],
        data: np.ndarray[Any, Any],
        layout: list[Field],
        names: Names,
    ) -> None:
        self.record_class = record_class
        #: The fields of the file that can be read, in its order; newer writers have more than the record class.
        self.layout = layout
        self._data = data
        self._bit = {field.name: index for index, field in enumerate(layout)}
        self._kind = {field.name: field.base for field in layout}
        self._names = names
        self._validity: np.ndarray[Any, Any] | None = None
        self._always = np.uint64(0)

    def __len__(self) -> int:
        return len(self._data)

    def column(self, name: str) -> Column:
        """One field of all records. KeyError if neither the file nor the record class has it."""
        if name not in self._bit:
            return self._absent(name)
        if self._kind[name] == "name":
            return self._strings(name)
        values = np.ascontiguousarray(self._data[name])
        invalid = ~self.presence_mask(name)
        if self._kind[name] == "float64":
            invalid |= ~np.isfinite(values)
        return np.ma.MaskedArray(values, mask=invalid)

    def codes(self, name: str) -> tuple[Column, dict[int, str]]:
        """A column of strings as small integers and their meaning: what to group by when there are many."""
        if name not in self._bit:
            return self._absent(name), {}
        ids = np.ascontiguousarray(self._data[name])
        names = self._names.lookup(ids)
        is_id = np.zeros(LAST_ID + 1, dtype=bool)
        is_id[list(names)] = True
        return np.ma.MaskedArray(ids, mask=~(self.presence_mask(name) & is_id[ids])), names

    def rows(self) -> list[FixedRecord]:
        """The records as dataclasses; masked values are None."""
        columns = [self.column(field.name).tolist() for field in fields(self.record_class)]
        return [self.record_class(*values) for values in zip(*columns, strict=True)]

    def part(self, start: int, stop: int) -> Table:
        """The records from number ``start`` up to ``stop``, without that one."""
        return Table(self.record_class, self._data[start:stop], self.layout, self._names)

    def select(self, wanted: np.ndarray[Any, np.dtype[np.bool_]]) -> Table:
        """The records that a mask chooses."""
        return Table(self.record_class, self._data[wanted], self.layout, self._names)

    def has(self, name: str) -> bool:
        """Whether its file has a field."""
        return name in self._bit

    def presence_mask(self, name: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which records have a value in a field of the file, be it finite or not."""
        bit = np.uint64(1 << self._bit[name])
        if self._validity is None:
            self._validity = np.ascontiguousarray(self._data["validity"])
            self._always = np.bitwise_and.reduce(self._validity)
        if self._always & bit:  # the usual case, without a look at each record
            return np.ones(len(self), dtype=bool)
        return np.asarray((self._validity & bit) != 0)

    def _absent(self, name: str) -> Column:
        dtype = _EMPTY_DTYPE[_KINDS[self.record_class][name]]
        return np.ma.MaskedArray(np.zeros(len(self), dtype=dtype), mask=True)

    def _strings(self, name: str) -> Column:
        ids, names = self.codes(name)
        texts = np.array([names.get(number, "") for number in range(max(names, default=0) + 1)])
        return np.ma.MaskedArray(texts[ids.filled(0)], mask=ids.mask)


def empty_table(record_class: type[FixedRecord], names: Names) -> Table:
    """A table without records."""
    return Table(record_class, np.empty(0, dtype=[("validity", "<u8")]), [], names)
