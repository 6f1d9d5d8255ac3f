"""A file that only grows by whole pieces: a write that stops half-way is undone before the next one.

What is rare, events and the names that records refer to, lies in length-prefixed frames with a checksum.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

from profilers.records.codec import FormatError, decode_header

#: 0xc1 is the one byte that msgpack never uses as a type, so a frame's start is rarely imitated inside one.
MARK = b"\xc1\xc1"
_HEAD = struct.Struct("<2sII")
MAX_PAYLOAD_BYTES = 16 << 20
_HEADER_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Scan:
    """What a buffer held: whole frames, how far they reach, and one line for each damaged part."""

    payloads: list[bytes]
    consumed: int
    problems: list[str]


def pack_frame(payload: bytes) -> bytes:
    """Mark, length and CRC-32, then the payload. ValueError above 16 MiB."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a frame holds at most {MAX_PAYLOAD_BYTES} bytes, not {len(payload)}")
    return _HEAD.pack(MARK, len(payload), crc32(payload)) + payload


def scan_frames(buffer: bytes, base: int = 0) -> Scan:
    """Reads whole frames; skips damage in the middle and leaves a half-written end for the next time.

    ``base`` is the buffer's offset in its file, for the wording of problems.
    """
    payloads: list[bytes] = []
    problems: list[str] = []
    position = 0
    while position < len(buffer):
        end = _frame_end(buffer, position)
        if end is not None:
            payloads.append(buffer[position + _HEAD.size : end])
            position = end
            continue
        following = _next_frame(buffer, position + 1)
        if following is None:
            break
        problems.append(f"bytes {base + position} to {base + following} are damaged; skipped")
        position = following
    return Scan(payloads, position, problems)


def _frame_end(buffer: bytes, position: int) -> int | None:
    if len(buffer) - position < _HEAD.size:
        return None
    mark, length, checksum = _HEAD.unpack_from(buffer, position)
    start = position + _HEAD.size
    end: int = start + length
    if mark != MARK or length > MAX_PAYLOAD_BYTES or end > len(buffer):
        return None
    return end if crc32(buffer[start:end]) == checksum else None


def _next_frame(buffer: bytes, position: int) -> int | None:
    while (position := buffer.find(MARK, position)) >= 0:
        if _frame_end(buffer, position) is not None:
            return position
        position += 1
    return None


_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class AppendFile:
    """Opens at the first append, again at a later one if that failed, and continues an existing file.

    ``whole_bytes`` says how much of an existing file can be kept.
    """

    def __init__(self, path: Path, head: bytes, whole_bytes: Callable[[Path], int]) -> None:
        self._path = path
        self._head = head
        self._whole_bytes = whole_bytes
        self._descriptor = -1
        self._length = 0
        self._torn = False
        self._closed = False

    @classmethod
    def open_frames(cls, path: Path) -> AppendFile:
        """A file of frames (``profilers.records.frames``)."""
        return cls(path, b"", _whole_frames)

    @classmethod
    def open_records(cls, path: Path, head: bytes) -> AppendFile:
        """A file of fixed records below ``head``; one with another layout moves to ``<path>.old``."""
        return cls(path, head, partial(_whole_records, head=head))

    def append(self, data: bytes) -> None:
        """Writes all of ``data`` in one call, or nothing. OSError if that was not possible."""
        if self._descriptor < 0:
            self._open()
        elif self._torn:
            self._mend()
        self._write(data)

    def close(self) -> None:
        """Ends the file; a later append is an OSError."""
        self._closed = True
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        """As with Python's own files: who drops one without closing it keeps no descriptor."""
        self.close()

    def _write(self, data: bytes) -> None:
        self._torn = True
        written = os.write(self._descriptor, data)
        if written != len(data):
            self._mend()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._length += written
        self._torn = False

    def _mend(self) -> None:
        os.ftruncate(self._descriptor, self._length)
        self._torn = False

    def _open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "the record writer is closed")
        self._length = self._whole_bytes(self._path) if self._path.exists() else 0
        self._descriptor = os.open(self._path, _FLAGS, 0o644)
        try:
            self._mend()
            if self._length == 0 and self._head:
                self._write(self._head)
        except OSError:
            os.close(self._descriptor)
            self._descriptor = -1
            raise


def count_records(path: Path) -> int:
    """How many whole records a file holds; 0 where there is none, or it is no file of records."""
    try:
        with path.open("rb") as file:
            decoded = decode_header(file.read(_HEADER_BYTES))
        if decoded is None:
            return 0
        header, end = decoded
        return max(0, path.stat().st_size - end) // header.record_bytes
    except (OSError, FormatError):
        return 0


def _whole_frames(path: Path) -> int:
    return scan_frames(path.read_bytes()).consumed


def _whole_records(path: Path, head: bytes) -> int:
    ours = decode_header(head)
    with path.open("rb") as file:
        start = file.read(4 * len(head))
    try:
        file_header = decode_header(start)
    except FormatError:
        file_header = None
    if ours is None or file_header is None or file_header[0].fields != ours[0].fields:
        path.replace(path.with_name(path.name + ".old"))
        return 0
    header, end = file_header
    return end + (path.stat().st_size - end) // header.record_bytes * header.record_bytes
