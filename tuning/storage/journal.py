"""The journal of a study: an append-only file of JSON lines, from which everything else can be made again."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from engine.config.errors import InputError
from tuning.storage.lock import TURN, FileLock
from tuning.storage.state import Line, StudyState

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

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path.with_name(TURN))
        self.state = StudyState()
        self._offset = self._lines = 0
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
        with self._locked():
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
    def _locked(self) -> Iterator[None]:
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
                self._mend()
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

    def _mend(self) -> None:
        """Cut off a half-written last line, or end a whole one: the next line must begin on its own. Whoever wrote it
        is gone, for we have the lock.
        """
        tail = os.pread(self._file, os.fstat(self._file).st_size - self._offset, self._offset)
        if line_in(tail) is None:
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
        parsed = line_in(piece)
        if parsed is not None:
            lines.append(parsed)
        elif piece.strip() and number < first + len(pieces) - 1:
            damage.append(f"{name} line {number} cannot be read and is left out")
    return lines, damage


def line_in(piece: bytes) -> Line | None:
    """The line that a piece of a journal is; None for one that is half-written or damaged."""
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
