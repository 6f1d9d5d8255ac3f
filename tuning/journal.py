"""The journal of a study: an append-only file of JSON lines, from which everything else can be made again."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from engine.errors import InputError
from tuning.state import Folding, Line, StudyState, fold

Result = TypeVar("Result")


class Journal:
    """Appends lines, one ``write`` each, and keeps the state that they amount to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._check(self._mend)
        self._file = self._check(lambda: os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644))
        lines, self._damage = read(path)
        self._folding = Folding()
        self._state: StudyState | None = None
        for line in lines:
            self._folding.take(line)

    @property
    def state(self) -> StudyState:
        """What the lines so far amount to."""
        if self._state is None:
            self._state = with_damage(self._folding.state(), self._damage)
        return self._state

    @property
    def answered(self) -> Collection[str]:
        """Ids of the commands that have their answer."""
        return self._folding.answers.keys()

    def append(self, kind: str, **values: Any) -> None:
        """Write one line; it is on disk when this returns if it is one that must never be lost."""
        line = {"at_unix": time.time(), "kind": kind} | {key: _finite(value) for key, value in values.items()}
        data = json.dumps(line, allow_nan=False).encode() + b"\n"

        def write() -> None:
            if os.write(self._file, data) != len(data):
                raise OSError(28, "No space left on device")
            if kind in ("study", "tell", "command"):
                os.fsync(self._file)

        self._check(write)
        self._folding.take(line)
        self._state = None

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _mend(self) -> None:
        """Cut off a half-written last line, or end a whole one: the next line must begin on its own."""
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        tail = data[data.rfind(b"\n") + 1 :]
        if tail:
            with self.path.open("r+b") as file:
                if _parsed(tail) is None:
                    file.truncate(len(data) - len(tail))
                else:
                    file.seek(0, os.SEEK_END)
                    file.write(b"\n")

    def _check(self, action: Callable[[], Result]) -> Result:
        try:
            return action()
        except OSError as error:
            remedy = f"cannot be written ({error.strerror}); free space or give another --home"
            raise InputError("home", str(self.path), remedy) from None


def read(path: Path) -> tuple[list[Line], list[str]]:
    """All complete lines, and what is wrong with the others; a half-written last line is no damage."""
    try:
        pieces = path.read_bytes().split(b"\n")
    except OSError:
        return [], []
    lines, damage = [], []
    for number, piece in enumerate(pieces, start=1):
        parsed = _parsed(piece)
        if parsed is not None:
            lines.append(parsed)
        elif piece.strip() and number < len(pieces):
            damage.append(f"{path.name} line {number} cannot be read and is left out")
    return lines, damage


def load(path: Path) -> StudyState:
    """The state of a study, from its journal."""
    lines, damage = read(path)
    return with_damage(fold(lines), damage)


def with_damage(state: StudyState, damage: list[str]) -> StudyState:
    """The state, with what could not be read added to what could not be used."""
    return replace(state, damage=(*damage, *state.damage))


def _parsed(piece: bytes) -> Line | None:
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
