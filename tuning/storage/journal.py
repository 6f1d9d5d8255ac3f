"""The journal of a study: an append-only file of JSON lines, from which everything else can be made again.

:class:`Journal` writes and reads it for the controller of a study, :class:`JournalReader` reads on from where its last
look ended, and :class:`FileLock` is held by one process at a time and by nobody once that process is gone.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeVar

import msgspec

from engine.config.errors import InputError
from tuning.storage.state import Line, StudyState

TURN = ".turn"


class FileLock:
    """Held while entered; may be entered again inside. The file is opened anew each time, so that no child of ours can
    go on holding it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._depth, self._file = 0, -1

    def __enter__(self) -> None:
        if self._depth == 0:
            self._file = _acquire_lock(self._path)
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            os.close(self._file)


def _acquire_lock(path: Path) -> int:
    opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
    except BaseException:
        os.close(opened)
        raise
    return opened


Result = TypeVar("Result")
#: Lines of these kinds are on disk before anything else happens.
KEPT_SAFE = ("study", "tell", "command")


class UnreachableError(Exception):
    """Where a journal is kept does not answer now; it is asked again later."""


class Journal:
    """Appends lines, one ``write`` each, and keeps the ``state`` that they amount to, which changes with each of them.

    Several controllers may write one: what others appended is taken over before each line of ours and by
    :meth:`refresh`, so that all of them see the same lines in the same order.
    """

    def __init__(self, path: Path, reader: JournalReader | None = None) -> None:
        """``reader``: of the same file; what it has read is not read again."""
        self.path = path
        self._lock = FileLock(path.with_name(TURN))
        self.state, self._offset, self._lines = reader.snapshot() if reader else (StudyState(), 0, 0)
        self._file = self._check(lambda: os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644))
        self._check(self._take_over)

    def append(self, kind: str, **values: Any) -> None:
        """Write one line; it is on disk when this returns if it is one that must never be lost."""
        line = line_of(kind, values)
        self._check(lambda: self._write(line, json.dumps(line, allow_nan=False)))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Only one controller decides at a time; inside, all that others wrote is known. May be entered again inside.

        Raises:
            UnreachableError: it is not known what others wrote.
        """
        with self._acquire_lock():
            self._check(self._take_over)
            yield

    def refresh(self) -> bool:
        """Take over what others appended by now; whether there was something. Never waits."""
        return self._check(self._read_new)

    def has_beside(self, name: str) -> bool:
        """Whether there is a study of that name where this one is kept, or something else in its place."""
        return (self.path.parent.parent / name).exists()

    def has_begun(self, name: str) -> bool:
        """Whether the study of that name has a journal where this one is kept."""
        return (self.path.parent.parent / name / self.path.name).exists()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    @contextmanager
    def _acquire_lock(self) -> Iterator[None]:
        self._check(self._lock.__enter__)
        try:
            yield
        finally:
            self._lock.__exit__(None, None, None)

    def _write(self, line: Line, text: str) -> None:
        data = text.encode() + b"\n"
        with self._lock:
            self._take_over()
            if os.write(self._file, data) != len(data):
                raise OSError(28, "No space left on device")
            if line["kind"] in KEPT_SAFE:
                os.fsync(self._file)
            self._offset += len(data)
            self._lines += 1
            self.state.take([line])

    def _take_over(self) -> None:
        """Everything that is there, which ends with a whole line afterwards."""
        with self._lock:
            self._read_new()
            if os.fstat(self._file).st_size > self._offset:
                self._repair_tail()
                self._read_new()

    def _read_new(self) -> bool:
        """The whole lines after those that are known; one that is being written has no end yet, and waits."""
        size = os.fstat(self._file).st_size
        if size <= self._offset:
            return False
        data = os.pread(self._file, size - self._offset, self._offset)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._lines += take_text(self.state, whole, self.path.name, self._lines + 1)
        return bool(whole)

    def _repair_tail(self) -> None:
        """Cut off a half-written last line, or end a whole one: the next line must begin on its own. Whoever wrote it
        is gone, for we have the lock.
        """
        tail = os.pread(self._file, os.fstat(self._file).st_size - self._offset, self._offset)
        if parse_line(tail) is None:
            os.ftruncate(self._file, self._offset)
        else:
            os.write(self._file, b"\n")

    def _check(self, action: Callable[[], Result]) -> Result:
        try:
            return action()
        except OSError as error:
            remedy = f"cannot be written ({error.strerror}); free space or give another --home"
            raise InputError("home", str(self.path), remedy) from None


def line_of(kind: str, values: dict[str, Any]) -> Line:
    """A line that is written now."""
    return {"at_unix": time.time(), "kind": kind} | {key: _finite(value) for key, value in values.items()}


def read(path: Path) -> tuple[list[Line], list[str]]:
    """All complete lines, and what is wrong with the others; a half-written last line is no damage."""
    try:
        return parse(path.read_bytes(), path.name, 1)
    except OSError:
        return [], []


def load(path: Path) -> StudyState:
    """The state of a study, from its journal; that of no study where it cannot be read."""
    state = StudyState()
    with suppress(OSError):
        take_text(state, path.read_bytes(), path.name, 1)
    return state


def take_text(state: StudyState, data: bytes, name: str, first: int) -> int:
    """Let a state take the lines of a journal's text, of which the first has this number; how many ends of lines are
    in it.
    """
    lines, damage = parse(data, name, first)
    state.damage += tuple(damage)
    state.take(lines)
    return data.count(b"\n")


def parse(data: bytes, name: str, first: int) -> tuple[list[Line], list[str]]:
    """Lines, of which the first has this number."""
    lines, damage = [], []
    pieces = data.split(b"\n")
    for number, piece in enumerate(pieces, start=first):
        parsed = parse_line(piece)
        if parsed is not None:
            lines.append(parsed)
        elif piece.strip() and number < first + len(pieces) - 1:
            damage.append(f"{name} line {number} cannot be read and is left out")
    return lines, damage


def parse_line(piece: bytes) -> Line | None:
    """The line that a piece of a journal is; None for one that is half-written or damaged."""
    line: Any
    try:
        line = msgspec.json.decode(piece)  # twice as fast as json, which is asked where this one is stricter
    except msgspec.DecodeError:
        try:
            line = json.loads(piece)
        except ValueError:
            return None
    return (
        line if isinstance(line, dict) and isinstance(line.get("kind"), str) and "at_unix" in line else None
    )


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: what is not a number is not known."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


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
        stat = os.fstat(file.fileno())
        if (stat.st_dev, stat.st_ino) != self.file or stat.st_size < self.size:
            return False
        return self.first == _read_at(file, 0, len(self.first)) and self.last == _read_at(
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

    def snapshot(self) -> tuple[StudyState, int, int]:
        """A copy of the state by now, and how many bytes and lines of the file it is from: whole lines only."""
        with self._lock, suppress(OSError), self.path.open("rb") as file:
            self._follow(file)
            if self._mark is not None and self._mark.last.endswith(b"\n"):
                return self._state.copy(), self._mark.size, self._lines
        return StudyState(), 0, 0

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
    while len(data := _read_at(file, offset, wanted)) == wanted and b"\n" not in data:
        wanted *= 2
    cut = data.rfind(b"\n") + 1
    if cut:
        return data[:cut]
    return data if parse_line(data) is not None else b""


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    return os.pread(file.fileno(), size, offset)


def _mark(file: BinaryIO, size: int) -> _Mark:
    stat, length = os.fstat(file.fileno()), min(size, _MARK_BYTES)
    return _Mark(
        (stat.st_dev, stat.st_ino), size, _read_at(file, 0, length), _read_at(file, size - length, length)
    )
