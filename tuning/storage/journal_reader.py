"""A journal that is looked at again and again: each look reads on from where the last one ended."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tuning.storage.journal import line_in, take_text
from tuning.storage.state import StudyState

#: So much is read and folded at a time: a journal of 10,000 trials has 40 MB.
_PIECE_BYTES = 1 << 22
#: What is compared at the begin and at the end of what was read: a file may be written over in place.
_MARK_BYTES = 256


@dataclass(frozen=True, slots=True)
class _Mark:
    """A file as far as it was read."""

    file: tuple[int, int]
    size: int
    first: bytes
    last: bytes

    def holds(self, file: BinaryIO) -> bool:
        """Whether a file begins with what was read."""
        found = os.fstat(file.fileno())
        if (found.st_dev, found.st_ino) != self.file or found.st_size < self.size:
            return False
        return self.first == _at(file, 0, len(self.first)) and self.last == _at(
            file, self.size - len(self.last), len(self.last)
        )


class JournalReader:
    """The state that a journal amounts to by now, the same as :func:`tuning.storage.journal.load` says.

    A file that was replaced, shortened or written over is read anew. A half-written last line waits for its rest. May
    be used by several threads: a state that was given out does not change any more, the next one begins as its copy.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._begin()

    def look(self) -> StudyState:
        """The state now; the very same object as long as nothing was added."""
        with self._lock:
            try:
                with self.path.open("rb") as file:
                    self._follow(file)
            except OSError:
                if self._mark is not None:
                    self._begin()
            return self._state

    def _begin(self) -> None:
        self._state, self._lines = StudyState(), 0
        self._mark: _Mark | None = None

    def _follow(self, file: BinaryIO) -> None:
        if self._mark is not None and not self._mark.holds(file):
            self._begin()
        start = size = self._mark.size if self._mark else 0
        while data := _next(file, size):
            if size == start:
                self._state = self._state.copy()
            self._lines += take_text(self._state, data, self.path.name, self._lines + 1)
            size += len(data)
        if self._mark is None or size > start:
            self._mark = _mark(file, size)


def _next(file: BinaryIO, offset: int) -> bytes:
    """Whole lines from there on, some MB of them; a last one without its end only if nothing of it is missing."""
    wanted = _PIECE_BYTES
    while len(data := _at(file, offset, wanted)) == wanted and b"\n" not in data:
        wanted *= 2
    cut = data.rfind(b"\n") + 1
    if cut:
        return data[:cut]
    return data if line_in(data) is not None else b""


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    return os.pread(file.fileno(), size, offset)


def _mark(file: BinaryIO, size: int) -> _Mark:
    found, length = os.fstat(file.fileno()), min(size, _MARK_BYTES)
    return _Mark((found.st_dev, found.st_ino), size, _at(file, 0, length), _at(file, size - length, length))
