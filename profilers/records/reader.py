"""Reading what was written so far: complete records after an offset, and all processes of a run together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from profilers.records.append_file import scan_frames
from profilers.records.codec import (
    MAGIC,
    MAX_FIELDS,
    FormatError,
    Header,
    decode_header,
    known_fields,
    record_dtype,
)
from profilers.records.names import Names
from profilers.records.schema import STREAMS, UNDONE_EVENT, Event
from profilers.records.table import Table, empty_table

__all__ = [
    "ARCHIVED", "HOST_PREFIX", "Archive", "EventTail", "RunRecords", "Table", "Tail", "host_name", "is_host",
    "unknown_streams",
]  # fmt: skip

#: A file of records that was compacted has this after its own name; the workbench knows how to read it.
ARCHIVED = ".parquet"
#: Opens what became of a record file: its records from a number on, or None if nothing did.
#: Raises FormatError for one that cannot be understood.
Archive = Callable[[Path, int], Table | None]

#: Above this size new records are memory-mapped instead of read.
_MAP_BYTES = 1 << 20
_HEADER_READ_BYTES = 1 << 16
#: Records that are looked at in one go for the first one of a step.
_LOOKED_AT = 4096
_RANK_PREFIX = "rank-"
#: What samples a host: beside our own launcher, or a process of its own on each host of a run that another started.
LAUNCHER, HOST_PREFIX = "launcher", "host-"


class _Layout:
    """How the records of one file lie, from its header."""

    def __init__(self, header: Header, head_bytes: int) -> None:
        self.fields = known_fields(header)
        self.dtype = record_dtype(header)
        self.head_bytes = head_bytes
        self._possible = np.uint64((1 << min(len(header.fields), MAX_FIELDS)) - 1)
        required = (
            1 << index for index, field in enumerate(header.fields[:MAX_FIELDS]) if not field.optional
        )
        self._required = np.uint64(sum(required))

    def good(self, data: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which records have a validity mask that a writer can write; zeros after a power cut do not."""
        validity = data["validity"]
        return np.asarray((validity & self._required == self._required) & (validity <= self._possible))


class Tail:
    """The records of one file not read yet. A half-written last one waits; a bad one is a problem.

    Where the file is gone, ``archive`` is asked for what it was compacted to.
    """

    def __init__(self, path: Path, archive: Archive | None = None) -> None:
        self._path = path
        self._archive = archive or _no_archive
        self._record_class = STREAMS[path.suffix.removeprefix(".")]
        self._names = Names(path.with_suffix(".names"))
        self._layout: _Layout | None = None
        self._records = 0
        self._problems: list[str] = []

    @property
    def problems(self) -> list[str]:
        """One line for each thing that could not be read."""
        return [f"{self._path.name}: {problem}" for problem in self._problems] + self._names.problems

    def skip(self, find_first: Callable[[np.ndarray[Any, Any]], int]) -> int:
        """Leaves out the records before the one that ``find_first`` chooses among all that are in the file by now,
        which it gets mapped and not read; returns how many. None are left out of a file that cannot be read, or that
        was compacted.
        """
        try:
            self._layout = self._layout or self._read_layout()
            count = 0 if self._layout is None else self._count(self._layout)
            if self._layout is None or count <= 0:
                return 0
            skipped = find_first(self._map(self._layout, count))
        except (FormatError, OSError):  # the next reading says so
            return 0
        self._records += skipped
        return skipped

    def read_new(self) -> Table:
        """The complete records written since the last call; none is an empty table, and so is no file."""
        try:
            table = self._read_file()
        except (FormatError, OSError) as error:
            self._report(str(error))
            table = None
        return empty_table(self._record_class, self._names) if table is None else table

    def _read_file(self) -> Table | None:
        try:
            self._layout = self._layout or self._read_layout()
            return None if self._layout is None else self._read(self._layout)
        except FileNotFoundError:
            self._layout = None
        table = self._archive(self._path, self._records)
        self._records += 0 if table is None else len(table)
        return table

    def _read_layout(self) -> _Layout | None:
        with self._path.open("rb") as file:
            decoded = decode_header(file.read(_HEADER_READ_BYTES))
        return None if decoded is None else _Layout(*decoded)

    def _read(self, layout: _Layout) -> Table:
        count = self._count(layout)
        if count < 0:
            raise FormatError(f"became shorter than the {self._records} records that were read already")
        data = self._load(layout, count)
        good = layout.good(data)
        if not good.all():
            first = self._records + int(np.argmin(good))
            self._report(
                f"{len(data) - int(good.sum())} damaged records left out, the first is number {first}"
            )
            data = data[good]
        self._records += count
        return Table(self._record_class, data, layout.fields, self._names)

    def _count(self, layout: _Layout) -> int:
        """Complete records that were not read yet."""
        return (self._path.stat().st_size - layout.head_bytes) // layout.dtype.itemsize - self._records

    def _load(self, layout: _Layout, count: int) -> np.ndarray[Any, Any]:
        if count * layout.dtype.itemsize > _MAP_BYTES:
            return self._map(layout, count)
        return np.fromfile(self._path, layout.dtype, count=count, offset=self._offset(layout))

    def _map(self, layout: _Layout, count: int) -> np.ndarray[Any, Any]:
        mapped = np.memmap(self._path, layout.dtype, mode="r", offset=self._offset(layout), shape=(count,))
        return np.asarray(mapped)

    def _offset(self, layout: _Layout) -> int:
        return layout.head_bytes + self._records * layout.dtype.itemsize

    def _report(self, problem: str) -> None:
        if problem not in self._problems:
            self._problems.append(problem)


class EventTail:
    """The events of one file that were not read yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.problems: list[str] = []

    def read_new(self) -> list[Event]:
        """The complete events written since the last call; damaged ones are skipped and reported."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                scan = scan_frames(file.read(), self._offset)
        except FileNotFoundError:
            return []
        except OSError as error:
            self.problems.append(f"{self._path.name}: {error.strerror}")
            return []
        self._offset += scan.consumed
        self.problems += [f"{self._path.name}: {problem}" for problem in scan.problems]
        return [event for event in map(self._decode, scan.payloads) if event is not None]

    def _decode(self, payload: bytes) -> Event | None:
        try:
            return msgspec.msgpack.decode(payload, type=Event)
        except msgspec.MsgspecError as error:
            self.problems.append(f"{self._path.name}: not an event ({error})")
            return None


def retained_records(table: Table, stream: str, events: Sequence[Event], before: int = 0) -> Table:
    """The records of a rank's ``stream`` without those of steps that its ``events`` say were undone after they were
    written; so many lie ``before`` these in their file.
    """
    undone = [event.data for event in events if event.kind == UNDONE_EVENT]
    if not undone or not table.has("step"):
        return table
    steps, places = np.ma.getdata(table.column("step")), before + np.arange(len(table))
    is_undone = np.zeros(len(table), dtype=bool)
    for records in undone:
        count = dict(records.get("records") or {}).get(stream, 0)
        is_undone |= (places < count) & (steps >= records.get("step", 0))
    return table.select(~is_undone) if is_undone.any() else table


class RunRecords:
    """All records of one run: its folder ``records/``. What is read stays the same until ``refresh``.

    ``archive`` opens the files that were compacted after the run's end. With ``newest_steps`` only so many of the last
    steps that a rank wrote are read of the streams that have steps, so that a look at a long run costs what one at a
    short run does; events, and readings of hosts, are all there.
    """

    def __init__(self, folder: Path, archive: Archive | None = None, newest_steps: int | None = None) -> None:
        self._folder = folder
        self._archive = archive
        self._newest_steps = newest_steps
        self._tables: dict[tuple[str, str], tuple[Tail, Table]] = {}
        self._event_tails: dict[str, EventTail] = {}
        self._events: dict[str, list[Event]] = {}

    def processes(self) -> list[str]:
        """The names of all processes that wrote something."""
        suffixes = {*STREAMS, "events"}
        files = (Path(path.name.removesuffix(ARCHIVED)) for path in self._folder.glob("[!.]*.*"))
        return sorted({file.stem for file in files if file.suffix[1:] in suffixes})

    def ranks(self) -> list[int]:
        """The numbers of all ranks that wrote something."""
        numbers = [
            name.removeprefix(_RANK_PREFIX) for name in self.processes() if name.startswith(_RANK_PREFIX)
        ]
        return sorted(int(number) for number in numbers if number.isdecimal())

    def hosts(self) -> list[str]:
        """The processes that sampled a host, in the order of the ranks on them as far as that was told."""
        hosts = [name for name in self.processes() if is_host(name)]
        return sorted(hosts, key=lambda name: (min(self._ranks_on(name), default=0), name))

    def _ranks_on(self, host: str) -> list[int]:
        ranks = [event.data.get("ranks") for event in self.events(host) if event.kind == "host"]
        return list(ranks[-1] or ()) if ranks else []

    def table(self, process: int | str, stream: str) -> Table:
        """All records of one stream of a rank (a number) or process (a name). KeyError if no such stream."""
        key = _process(process), stream
        if key not in self._tables:
            tail = Tail(self._folder / f"{key[0]}.{stream}", self._archive)
            skipped = self._skip_older_steps(tail, key)
            self._tables[key] = tail, self._remaining(tail.read_new(), key, skipped)
        return self._tables[key][1]

    def _skip_older_steps(self, tail: Tail, key: tuple[str, str]) -> int:
        process, stream = key
        newest, has_steps = self._newest_steps, "step" in {field.name for field in fields(STREAMS[stream])}
        if newest is None or not has_steps or not process.startswith(_RANK_PREFIX):
            return 0
        if stream == "step":
            return tail.skip(lambda records: max(0, len(records) - newest))
        steps = np.ma.getdata(self.table(process, "step").column("step"))
        return tail.skip(lambda records: _first_of(records, int(steps.min()))) if len(steps) else 0

    def _remaining(self, table: Table, key: tuple[str, str], before: int) -> Table:
        process, stream = key
        return (
            retained_records(table, stream, self.events(process), before)
            if process.startswith(_RANK_PREFIX)
            else table
        )

    def events(self, process: int | str) -> list[Event]:
        """All events of a rank (its number) or process (its name), in the order they were written."""
        name = _process(process)
        if name not in self._events:
            tail = self._event_tails.setdefault(name, EventTail(self._folder / f"{name}.events"))
            self._events[name] = tail.read_new()
        return self._events[name]

    def refresh(self) -> None:
        """Lets later calls see what was written since."""
        self._tables.clear()
        for name, tail in self._event_tails.items():
            self._events[name] = self._events[name] + tail.read_new()

    @property
    def problems(self) -> list[str]:
        """One line for each thing that could not be read, of the tables and events asked for so far."""
        tables = [problem for tail, _ in self._tables.values() for problem in tail.problems]
        events = [problem for tail in self._event_tails.values() for problem in tail.problems]
        return tables + events + unknown_streams(self._folder)


def _first_of(records: np.ndarray[Any, Any], step: int) -> int:
    """The number of the first record of ``step`` or a later one. Steps that are done again follow later ones; before
    ``_LOOKED_AT`` records in a row of earlier steps nobody looks.
    """
    first = len(records)
    for stop in range(len(records), 0, -_LOOKED_AT):
        start = max(0, stop - _LOOKED_AT)
        places = np.flatnonzero(records["step"][start:stop] >= step)
        if not len(places):
            break
        first = start + int(places[0])
    return first


def is_host(process: str) -> bool:
    """Whether a process's records are readings of a host."""
    return process == LAUNCHER or process.startswith(HOST_PREFIX)


def host_name(process: str) -> str | None:
    """The name of the host that a process sampled; None of our launcher, which samples its own."""
    return process.removeprefix(HOST_PREFIX) if process.startswith(HOST_PREFIX) else None


def unknown_streams(folder: Path) -> list[str]:
    """One line for each record file of a stream that a newer version writes and this one does not know."""
    known_names = {*STREAMS, "events", "names", "old", ARCHIVED[1:]}
    others = sorted(path for path in folder.glob("[!.]*.*") if path.suffix[1:] not in known_names)
    return [
        f"{path.name}: a stream that this version does not know; left out"
        for path in others
        if _begins_with_magic(path)
    ]


def _begins_with_magic(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _no_archive(path: Path, first: int) -> Table | None:
    if path.with_name(path.name + ARCHIVED).is_file():
        raise FormatError(f"was compacted to {path.name}{ARCHIVED}, which only the workbench reads")
    return None


def _process(process: int | str) -> str:
    return f"{_RANK_PREFIX}{process}" if isinstance(process, int) else process
