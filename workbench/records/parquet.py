"""Records as Parquet: typed columns, null where nothing was recorded, and the header of the file they came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from profilers.records.codec import Field, FormatError, Header, decode_header, encode_header
from profilers.records.names import Names
from profilers.records.schema import STREAMS
from profilers.records.table import Column, Table

#: Records of a row group: what a reader decodes at least, and what is held in memory when one is written.
GROUP = 1 << 17
_HEADER = b"workbench.header"
_Mask = np.ndarray[Any, np.dtype[np.bool_]]
_TYPES = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "name": pa.dictionary(pa.int32(), pa.string()),
}


def schema_of(fields: Sequence[Field], header: Header | None = None) -> pa.Schema:
    """One column a field, nullable where it may be absent; ``header`` is kept as metadata."""
    columns = [pa.field(field.name, _TYPES[field.base], nullable=True) for field in fields]
    return pa.schema(columns, {_HEADER: encode_header(header)} if header else None)


def batches(table: Table) -> Iterator[Table]:
    """The records of a table in parts of a row group."""
    for start in range(0, len(table), GROUP):
        yield table.part(start, min(start + GROUP, len(table)))


def arrow_columns(table: Table, fields: Sequence[Field], finite: bool) -> list[pa.Array]:
    """Columns of some records. ``finite`` makes NaN and infinity null; without it they are kept as they are."""
    return [_arrow(table, field, finite) for field in fields]


def _arrow(table: Table, field: Field, finite: bool) -> pa.Array:
    if not any((field.name, field.base) == (column.name, column.base) for column in table.layout):
        return pa.nulls(len(table), _TYPES[field.base])
    if field.base == "name":
        return _arrow_names(table, field.name)
    column = table.column(field.name)
    mask = np.ma.getmaskarray(column) if finite else ~table.presence_mask(field.name)
    return pa.array(column.data, type=_TYPES[field.base], mask=mask, from_pandas=False)


def _arrow_names(table: Table, name: str) -> pa.Array:
    codes, names = table.codes(name)
    numbers = sorted(names)
    place = np.zeros(max(numbers, default=0) + 1, dtype=np.int32)
    place[numbers] = np.arange(len(numbers), dtype=np.int32)
    mask = np.ma.getmaskarray(codes)
    indices = pa.array(place[np.where(mask, 0, codes.data)], mask=mask, from_pandas=False)
    return pa.DictionaryArray.from_arrays(
        indices, pa.array([names[number] for number in numbers], pa.string())
    )


class ParquetFile:
    """One compacted record file, open: several threads may read from it, also after it was removed.

    Raises FormatError for a damaged or foreign file, OSError for one that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        try:
            with pq.ParquetFile(path) as file:
                self.header = _header(file)
            names = [field.name for field in self.header.fields if field.base == "name"]
            self._file = pq.ParquetFile(path, memory_map=True, read_dictionary=names)
        except pa.ArrowInvalid as error:
            raise FormatError(f"not a whole Parquet file ({error})") from error
        self.path = path
        groups = [self._file.metadata.row_group(group).num_rows for group in range(self._file.num_row_groups)]
        self._ends = np.cumsum([0, *groups])
        self._lock = Lock()

    @property
    def rows(self) -> int:
        """How many records it holds."""
        return int(self._ends[-1])

    def read(self, name: str, start: int, stop: int) -> pa.Array:
        """A column of the records from ``start`` up to ``stop``. FormatError if it is damaged."""
        first = int(np.searchsorted(self._ends, start, side="right")) - 1
        last = int(np.searchsorted(self._ends, stop, side="left"))
        groups = list(range(first, last)) if stop > start else []
        try:
            with self._lock:
                column = self._file.read_row_groups(groups, columns=[name]).column(0)
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"damaged Parquet file ({error})") from error
        whole = column.unify_dictionaries().combine_chunks()
        return whole.slice(start - int(self._ends[first]), stop - start) if groups else whole


class ParquetTable(Table):
    """Records of a compacted file: a column is decoded when it is asked for, from the row groups it needs."""

    def __init__(self, file: ParquetFile, start: int, stop: int, chosen: _Mask | None = None) -> None:
        header = file.header
        empty = np.empty(0, dtype=[("validity", "<u8")])
        super().__init__(STREAMS[header.stream], empty, header.fields, Names(file.path))
        self._file, self._start, self._stop = file, start, stop
        #: Which of these records it has; None: all.
        self._chosen = chosen
        self._decoded: dict[str, pa.Array] = {}

    def __len__(self) -> int:
        return self._stop - self._start if self._chosen is None else int(self._chosen.sum())

    def column(self, name: str) -> Column:
        """One field of all records. KeyError if neither the file nor the record class has it."""
        if name not in self._kind or self._kind[name] == "name":
            return super().column(name)
        values = _numpy(self._array(name))
        mask = ~self.presence_mask(name)
        return np.ma.MaskedArray(
            values, mask=mask | ~np.isfinite(values) if values.dtype.kind == "f" else mask
        )

    def codes(self, name: str) -> tuple[Column, dict[int, str]]:
        """A column of strings as small integers and their meaning."""
        if name not in self._kind:
            return super().codes(name)
        array = self._array(name)
        ids = _numpy(array.indices)
        return np.ma.MaskedArray(ids, mask=~self.presence_mask(name)), dict(
            enumerate(array.dictionary.to_pylist())
        )

    def part(self, start: int, stop: int) -> Table:
        """The records from number ``start`` up to ``stop``, without that one."""
        if self._chosen is None:
            return ParquetTable(self._file, self._start + start, min(self._start + stop, self._stop))
        return self._choose(slice(start, stop))

    def select(self, wanted: _Mask) -> Table:
        """The records that a mask chooses."""
        return self._choose(wanted)

    def _choose(self, wanted: slice | _Mask) -> Table:
        span = self._stop - self._start
        places = np.arange(span) if self._chosen is None else np.flatnonzero(self._chosen)
        chosen = np.zeros(span, dtype=bool)
        chosen[places[wanted]] = True
        return ParquetTable(self._file, self._start, self._stop, chosen)

    def presence_mask(self, name: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which records have a value in a field of the file, be it finite or not."""
        return np.asarray(self._array(name).is_valid().to_numpy(zero_copy_only=False))

    def _array(self, name: str) -> pa.Array:
        if name not in self._decoded:
            array = self._file.read(name, self._start, self._stop)
            self._decoded[name] = array if self._chosen is None else array.filter(pa.array(self._chosen))
        return self._decoded[name]


def _numpy(array: pa.Array) -> np.ndarray[Any, Any]:
    """The values with 0 in place of null."""
    plain = (
        array if not array.null_count else array.fill_null(False if pa.types.is_boolean(array.type) else 0)
    )
    return np.asarray(plain.to_numpy(zero_copy_only=False))


def _header(file: pq.ParquetFile) -> Header:
    stored = (file.schema_arrow.metadata or {}).get(_HEADER)
    header_and_size = decode_header(stored) if stored else None
    if header_and_size is None or header_and_size[0].stream not in STREAMS:
        raise FormatError("not a Parquet file of ours")
    return header_and_size[0]
