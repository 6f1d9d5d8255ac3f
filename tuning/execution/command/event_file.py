"""TensorBoard's event files as they grow: the step and wall time of each event that has values.

The frames are those of TFRecord (a length of 8 bytes, 4 of its checksum, the content, 4 of its checksum), the contents
protocol buffers: of an ``Event`` field 1 is the wall time (double), 2 the step (integer), 5 the summary. Checksums are
not looked at: a frame that is not whole yet is read again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

_HEAD, _CHECK = 12, 4
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


class EventFile:
    """One file, read on from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def new(self) -> list[tuple[int, float]]:
        """Steps and their wall times (Unix), in the order of the file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                content = file.read()
        except OSError:
            return []
        events, place = [], 0
        while len(content) - place >= _HEAD:
            (size,) = struct.unpack_from("<Q", content, place)
            end = place + _HEAD + size + _CHECK
            if end > len(content):
                break
            if (event := _event(content[place + _HEAD : end - _CHECK])) is not None:
                events.append(event)
            place = end
        self._read += place
        return events


def _event(content: bytes) -> tuple[int, float] | None:
    """Of one that has a summary."""
    step, wall, has_values = 0, 0.0, False
    for number, value in _fields(content):
        if number == _WALL_TIME and isinstance(value, bytes):
            (wall,) = struct.unpack("<d", value)
        elif number == _STEP and isinstance(value, int):
            step = value
        elif number == _SUMMARY:
            has_values = True
    return (step, wall) if has_values else None


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer; it ends at one of a kind that is not known."""
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(content, place)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, place = _varint(content, place)
        elif kind in (_FIXED_64, _FIXED_32):
            size = 8 if kind == _FIXED_64 else 4
        else:
            return
        yield key >> 3, content[place : place + size]
        place += size


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(content):
        byte = content[place]
        value, place, shift = value | (byte & 0x7F) << shift, place + 1, shift + 7
        if byte < 0x80:
            break
    return value, place
