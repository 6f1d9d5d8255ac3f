"""The strings that records refer to by number: one table a process, written before they are used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from profilers.records.append_file import AppendFile, pack_frame, scan_frames

#: Ids are uint16 in a record. All names beyond the last id share it.
LAST_ID = 65_535
OVERFLOW_NAME = "(more names than ids)"


class NameEntry(msgspec.Struct, frozen=True):
    """One row of the table."""

    id: int
    name: str


class NameTable(dict[str, int]):
    """The writer's side: name -> id. A new name is in the file before its id is given, else OSError."""

    def __init__(self, path: Path) -> None:
        names, _ = read_names(path)
        super().__init__({name: number for number, name in names.items()})
        self.file = AppendFile.open_frames(path)
        self._next = max((number for number in names if number != LAST_ID), default=-1) + 1

    def __missing__(self, name: str) -> int:
        if self._next < LAST_ID:
            self._add(name, self._next)
            self._next += 1
            return self[name]
        if OVERFLOW_NAME not in self:
            self._add(OVERFLOW_NAME, LAST_ID)
        return LAST_ID

    def _add(self, name: str, number: int) -> None:
        self.file.append(pack_frame(msgspec.msgpack.encode(NameEntry(number, name))))
        self[name] = number


class Names:
    """The reader's side: reads the file when an id turns up that it does not know yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._by_id: dict[int, str] = {}
        self.problems: list[str] = []

    def lookup(self, ids: np.ndarray[Any, np.dtype[np.uint16]]) -> dict[int, str]:
        """The names of ``ids``; an id that the file does not explain is left out."""
        wanted = np.flatnonzero(np.bincount(ids)).tolist()
        if any(number not in self._by_id for number in wanted):
            self._by_id, self.problems = read_names(self._path)
        return {number: self._by_id[number] for number in wanted if number in self._by_id}


def read_names(path: Path) -> tuple[dict[int, str], list[str]]:
    """Id -> name of a file that may be missing or damaged, and a line for each damaged part."""
    try:
        scan = scan_frames(path.read_bytes())
    except OSError as error:
        return {}, [f"{path.name}: {error.strerror}"]
    names: dict[int, str] = {}
    problems = [f"{path.name}: {problem}" for problem in scan.problems]
    for payload in scan.payloads:
        try:
            entry = msgspec.msgpack.decode(payload, type=NameEntry)
        except msgspec.MsgspecError as error:
            problems.append(f"{path.name}: {error}")
        else:
            names[entry.id] = entry.name
    return names, problems
