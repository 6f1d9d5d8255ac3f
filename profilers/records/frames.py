"""Length-prefixed frames with a checksum, for what is rare: events, and the names that records refer to."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from zlib import crc32

#: 0xc1 is the one byte that msgpack never uses as a type, so a frame's start is rarely imitated inside one.
MARK = b"\xc1\xc1"
_HEAD = struct.Struct("<2sII")
MAX_PAYLOAD_BYTES = 16 << 20


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
