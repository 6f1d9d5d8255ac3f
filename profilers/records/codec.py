"""Record class -> fixed little-endian layout, and the file header that describes it to later readers."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec
import numpy as np

from profilers.records.schema import STREAMS, FixedRecord

MAGIC = b"WBRECORD"
FORMAT_VERSION = 1
#: What a file starts with: magic, format version, length of the msgpack that follows.
PREFIX = struct.Struct("<8sHI")
#: A header longer than this is taken for damage.
MAX_HEADER_BYTES = 1 << 20
#: The validity mask has one bit a field.
MAX_FIELDS = 64

_KIND_OF_TYPE: dict[type, str] = {int: "int64", float: "float64", bool: "bool", str: "name"}
_STRUCT_CODES = {"int64": "q", "float64": "d", "bool": "?", "name": "H"}
_DTYPES = {"int64": "<i8", "float64": "<f8", "bool": "?", "name": "<u2"}

STREAM_OF: dict[type[FixedRecord], str] = {record_class: stream for stream, record_class in STREAMS.items()}


class FormatError(ValueError):
    """A record file whose header cannot be understood."""


class Field(NamedTuple):
    """One field of a record; ``kind`` is int64, float64, bool or name, with a ``?`` if it may be absent."""

    name: str
    kind: str

    @property
    def optional(self) -> bool:
        return self.kind.endswith("?")

    @property
    def base(self) -> str:
        return self.kind.removesuffix("?")


@dataclass(frozen=True, slots=True)
class Header:
    """Who wrote a record file, and how its records lie: a uint64 validity mask, then ``fields``, packed."""

    stream: str
    process: str
    pid: int
    host: str
    created_unix: float
    record_bytes: int
    fields: list[Field]


def fields_of(record_class: type[FixedRecord]) -> list[Field]:
    """The layout of a record class, from its annotations. TypeError for an annotation without a layout."""
    hints = get_type_hints(record_class)
    layout = [Field(field.name, _kind(hints[field.name])) for field in fields(record_class)]
    if len(layout) > MAX_FIELDS:
        raise TypeError(f"{record_class.__name__} has {len(layout)} fields; the mask holds {MAX_FIELDS}")
    return layout


def _kind(annotation: Any) -> str:
    options = set(get_args(annotation)) if isinstance(annotation, UnionType) else {annotation}
    required = options - {NoneType}
    kind = _KIND_OF_TYPE.get(required.pop()) if len(required) == 1 else None
    if kind is None:
        raise TypeError(
            f"a record field cannot be {annotation}: use int, float, bool, str or one of them | None"
        )
    return f"{kind}?" if NoneType in options else kind


def record_struct(layout: list[Field]) -> struct.Struct:
    """The packed form of one record: the mask, then the fields."""
    return struct.Struct("<Q" + "".join(_STRUCT_CODES[field.base] for field in layout))


class Encoder:
    """Packs records of one class. ``names`` gives the id of a string, and may grow by itself."""

    def __init__(self, record_class: type[FixedRecord], names: Mapping[str, int]) -> None:
        layout = fields_of(record_class)
        self._pack = record_struct(layout).pack
        self._values = attrgetter(*(field.name for field in layout))
        self._all_valid = (1 << len(layout)) - 1
        self._optional = [(place, 1 << place - 1) for place, field in enumerate(layout, 1) if field.optional]
        self._strings = [place for place, field in enumerate(layout, 1) if field.base == "name"]
        self._names = names

    def encode(self, record: FixedRecord) -> bytes:
        """The record as bytes; struct.error if a value does not have its annotated type."""
        return self._pack(*self.values(record))

    def values(self, record: FixedRecord) -> list[Any]:
        """What is packed: the validity mask, then the fields with names as ids and 0 for what is absent."""
        values = [self._all_valid, *self._values(record)]
        for index in self._strings:
            if values[index] is not None:
                values[index] = self._names[values[index]]
        for index, bit in self._optional:
            if values[index] is None:
                values[index] = 0
                values[0] ^= bit
        return values


def encode_header(header: Header) -> bytes:
    """The head of a record file."""
    body = msgspec.msgpack.encode(header)
    return PREFIX.pack(MAGIC, FORMAT_VERSION, len(body)) + body


def decode_header(start: bytes) -> tuple[Header, int] | None:
    """The header and its length in bytes; None while it is not there as a whole.

    Raises FormatError for a foreign file, a format version of the future, or a damaged header.
    """
    if len(start) < PREFIX.size:
        return None
    magic, version, length = PREFIX.unpack_from(start)
    if magic != MAGIC:
        raise FormatError("not a record file (wrong magic)")
    if version > FORMAT_VERSION:
        raise FormatError(f"format version {version}; this reader knows up to {FORMAT_VERSION}: update it")
    if length > MAX_HEADER_BYTES:
        raise FormatError(f"damaged header (length {length})")
    end = PREFIX.size + length
    if len(start) < end:
        return None
    try:
        return msgspec.msgpack.decode(start[PREFIX.size : end], type=Header), end
    except msgspec.MsgspecError as error:
        raise FormatError(f"damaged header ({error})") from error


def record_dtype(header: Header) -> np.dtype[Any]:
    """How numpy sees a file's records: ``validity``, then the fields up to the first unknown kind.

    Raises FormatError if the fields do not fit into the record length that the header gives.
    """
    names, formats, offsets, offset = ["validity"], ["<u8"], [0], 8
    for field in known_fields(header):
        names.append(field.name)
        formats.append(_DTYPES[field.base])
        offsets.append(offset)
        offset += np.dtype(_DTYPES[field.base]).itemsize
    spec: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": header.record_bytes}
    try:
        dtype: np.dtype[Any] = np.dtype(spec)
    except ValueError as error:
        raise FormatError(f"damaged header ({error})") from error
    return dtype


def known_fields(header: Header) -> list[Field]:
    """The fields up to the first one of a kind that this version cannot place."""
    fields: list[Field] = []
    for field in header.fields:
        if field.base not in _DTYPES:
            break
        fields.append(field)
    return fields
