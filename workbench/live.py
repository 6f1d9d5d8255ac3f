"""What a run folder says right now, read piece by piece and shared by all who look at it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from engine import progress, rundir
from profilers.communication import communication_rows
from profilers.records import Event
from profilers.tail import EventTail, Table, Tail
from workbench.series import Columns

#: Collectives are averaged over this many steps: the last ones that every rank has ended.
WINDOW_STEPS = 20
#: A second request within this time gets the same snapshot.
FRESH_SECONDS = 0.8
#: Run folders followed at a time.
FOLLOWED = 8


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at a run. Columns are per rank; a stream that is not there is missing or empty."""

    id: str
    status: Mapping[str, Any]
    config: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    ranks: list[progress.RankProgress]
    steps: Mapping[int, Columns]
    communication: list[dict[str, Any]]
    memory: Mapping[int, Columns]
    host: Columns
    gpu: Columns
    launcher_events: list[Event]
    problems: list[str]

    @property
    def running(self) -> bool:
        """Whether its status says that it goes on."""
        return self.status.get("state") in ("starting", "running")


@dataclass(slots=True)
class _Stream:
    """The rows of one file so far."""

    tail: Tail
    columns: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def refresh(self) -> Columns:
        table = self.tail.read_new()
        if not self.columns or len(table):
            self.columns = {name: self._grown(name, table) for name in _names(table)}
        return self.columns

    def _grown(self, name: str, table: Table) -> np.ndarray[Any, Any]:
        new = _filled(table, name)
        return np.concatenate([self.columns[name], new]) if self.columns else new


class _Collectives:
    """One rank's calls of the last steps; older ones are forgotten, since a long run has millions."""

    def __init__(self, path: Path) -> None:
        self.tail = Tail(path)
        self.tables: list[Table] = []

    def refresh(self, first_step: int) -> list[Table]:
        new = self.tail.read_new()
        kept = [
            table for table in [*self.tables, new] if len(table) and table.column("step")[-1] >= first_step
        ]
        self.tables = kept
        return kept


class LiveRun:
    """Follows one run folder; each ``read`` costs what was written since the last one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._records = folder / rundir.RECORDS
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._collectives: dict[int, _Collectives] = {}
        self._events = EventTail(self._records / "launcher.events")
        self._launcher_events: list[Event] = []

    def read(self) -> Snapshot:
        """Everything that is there by now; what is missing or half-written is left out."""
        self._launcher_events += self._events.read_new()
        ranks = self._ranks()
        steps = {rank: self._columns(f"rank-{rank}", "step") for rank in ranks}
        return Snapshot(
            id=self.folder.name,
            status=rundir.read_json(self.folder / rundir.STATUS) or {},
            config=rundir.read_json(self.folder / rundir.CONFIG) or {},
            summary=rundir.read_json(self.folder / rundir.SUMMARY),
            ranks=progress.read(self.folder),
            steps=steps,
            communication=self._communication(steps),
            memory={rank: self._columns(f"rank-{rank}", "memory") for rank in ranks},
            host=self._columns("launcher", "host"),
            gpu=self._columns("launcher", "gpu"),
            launcher_events=list(self._launcher_events),
            problems=self._problems(),
        )

    def _ranks(self) -> list[int]:
        names = (path.stem.removeprefix("rank-") for path in self._records.glob("rank-*.step"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _columns(self, process: str, stream: str) -> Columns:
        key = process, stream
        if key not in self._streams:
            self._streams[key] = _Stream(Tail(self._records / f"{process}.{stream}"))
        return self._streams[key].refresh()

    def _communication(self, steps: Mapping[int, Columns]) -> list[dict[str, Any]]:
        """Rows as in a summary, over the last steps that every rank has ended."""
        window = last_steps([columns["step"] for columns in steps.values()], WINDOW_STEPS)
        first = int(window[0]) if len(window) else 0
        tables: list[Table] = []
        for rank in steps:
            path = self._records / f"rank-{rank}.comm"
            tables += self._collectives.setdefault(rank, _Collectives(path)).refresh(first)
        rows = communication_rows(tables, window, len(window) * len(steps)) if len(window) else []
        return [asdict(row) for row in rows]

    def _problems(self) -> list[str]:
        tails = [stream.tail for stream in self._streams.values()]
        tails += [collectives.tail for collectives in self._collectives.values()]
        return [problem for tail in tails for problem in tail.problems]


class LiveRuns:
    """Snapshots for everybody: made at most once in ``FRESH_SECONDS``, however many browsers ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._followed: dict[Path, tuple[LiveRun, float, Snapshot]] = {}

    def snapshot(self, folder: Path) -> Snapshot:
        """A look at the run that is at most ``FRESH_SECONDS`` old."""
        with self._lock:
            known = self._followed.pop(folder, None)
            if known is None or self._clock() - known[1] > FRESH_SECONDS:
                run = known[0] if known else LiveRun(folder)
                known = run, self._clock(), run.read()
            self._followed[folder] = known
            while len(self._followed) > FOLLOWED:
                del self._followed[next(iter(self._followed))]
            return known[2]


def last_steps(ranks: Sequence[np.ndarray[Any, Any]], count: int) -> np.ndarray[Any, Any]:
    """The last ``count`` steps that every rank has ended."""
    common = reduce(np.intersect1d, ranks) if ranks else np.empty(0, dtype=np.int64)
    return np.asarray(common[-count:])


def _names(table: Table) -> list[str]:
    return [record_field.name for record_field in fields(table.record_class)]


def _filled(table: Table, name: str) -> np.ndarray[Any, Any]:
    """A column with NaN where nothing was read; names and flags keep their own empty value."""
    column: Any = table.column(name)
    if column.dtype.kind in "iu" and np.ma.is_masked(column):
        column = column.astype(float)
    filler: Any = np.nan if column.dtype.kind == "f" else "" if column.dtype.kind == "U" else 0
    return np.asarray(column.filled(filler))
