"""Chrome traces, read and written event by event: a trace of many ranks does not fit into memory.

Format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU; times
are microseconds since ``baseTimeNanoseconds``, which torch.profiler adds.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self

import msgspec

#: An event as the format has it: ``ph``, ``name``, ``ts``, ``pid``, ``args`` and others, by its phase ``ph``.
TraceEvent = dict[str, Any]
#: The ``args`` of an event: plain values by name, which viewers show as they stand.
TraceArguments = dict[str, Any]

_CHUNK = 1 << 18
_WRITE_BYTES = 1 << 18
#: The list of events begins within so many characters.
_HEAD_CHARACTERS = 1 << 22
_GZIP_LEVEL = 3
_BEGIN = re.compile(r'"traceEvents"\s*:\s*\[')
_BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*(\d+)')
_DEVICES = re.compile(r'"deviceProperties"\s*:\s*')
_BETWEEN = re.compile(r"[\s,]*")

encode = msgspec.json.Encoder().encode


class TraceError(ValueError):
    """A file that is no Chrome trace, or only a part of one."""


class TraceReader:
    """A trace as torch.profiler writes it. ``base_ns`` is the unix time in nanoseconds to which its times are added.

    Raises:
        TraceError: now or while events are read: damaged, cut short, or something else.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] = gzip.open(path, "rt", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._buffer = ""
        try:
            self._at = self._head()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _head(self) -> int:
        match = _BEGIN.search(self._buffer)
        while match is None:
            if len(self._buffer) > _HEAD_CHARACTERS or not self._more():
                raise TraceError(f"{self._path.name} has no trace events")
            match = _BEGIN.search(self._buffer)
        head = self._buffer[: match.start()]
        base, devices = _BASE.search(head), _DEVICES.search(head)
        self.base_ns = int(base.group(1)) if base else 0
        self.devices: list[Any] = _value(head, devices.end()) or [] if devices else []
        return match.end()

    def events(self) -> Iterator[TraceEvent]:
        """One after the other, once."""
        decode = json.JSONDecoder(strict=False).raw_decode
        while True:
            between = _BETWEEN.match(self._buffer, self._at)
            self._at = between.end() if between else self._at
            if self._buffer.startswith("]", self._at):
                return
            try:
                event, self._at = decode(self._buffer, self._at)
            except json.JSONDecodeError:
                self._buffer, self._at = self._buffer[self._at :], 0
                if not self._more():
                    raise TraceError(f"{self._path.name} ends in the middle of an event") from None
            else:
                yield event

    def _more(self) -> bool:
        try:
            text = self._file.read(_CHUNK)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceError(f"{self._path.name} is damaged: {error}") from None
        self._buffer += text
        return bool(text)


class TraceWriter:
    """Writes a compressed trace, which is there at the end of a ``with`` block without an exception, else not at all.

    The entries of ``head`` stand before the events, one in a line.
    """

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self._path, self._scratch = path, path.with_name(f".{path.name}.{os.getpid()}")
        lines = "".join(f'"{key}": {json.dumps(value)},\n' for key, value in head.items())
        self._head = ("{\n" + lines + '"traceEvents": [\n').encode()
        self._waiting: list[bytes] = []
        self._bytes, self._empty = 0, True

    def __enter__(self) -> Self:
        self._file = gzip.open(self._scratch, "wb", compresslevel=_GZIP_LEVEL)
        self._file.write(self._head)
        return self

    def write(self, event: bytes) -> None:
        """One event, encoded."""
        self._waiting.append(event)
        self._bytes += len(event)
        if self._bytes > _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Many at once: a compressed file takes as long for a small piece as for a large one."""
        if self._waiting:
            self._file.write((b"" if self._empty else b",\n") + b",\n".join(self._waiting))
            self._empty = False
        self._waiting.clear()
        self._bytes = 0

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
                self._file.write(b"\n]\n}\n")
            self._file.close()
            if kind is None:
                self._scratch.replace(self._path)
        finally:
            self._scratch.unlink(missing_ok=True)


def _value(text: str, start: int) -> Any:
    try:
        return json.JSONDecoder(strict=False).raw_decode(text, start)[0]
    except json.JSONDecodeError:
        return None
