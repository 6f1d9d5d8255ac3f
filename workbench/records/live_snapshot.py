"""What a run folder says right now, read piece by piece and shared by all who look at it."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engine.run import progress, run_folder
from engine.run.calibration import store
from engine.run.run_folder import RunStatus
from profilers.analysis.anatomy import hosts_of
from profilers.analysis.communication import communication_rows
from profilers.analysis.events import change_rows, planned_steps
from profilers.analysis.exposed_communication import seconds_of_calls
from profilers.analysis.rounds import recent_steps
from profilers.model.links import Links
from profilers.model.rows import ChangeRow
from profilers.model.run_summary import CommunicationRow, RunSummary
from profilers.records.reader import ARCHIVED, LAUNCHER, RunRecords, Table, host_name, unknown_streams
from profilers.records.schema import UNDONE_EVENT, Event
from profilers.records.table import Column
from workbench.records import heap
from workbench.records.archive import RetainedRecords
from workbench.records.columns import Columns, Stream, common_steps
from workbench.records.live_records import KeptSteps, KeptStream, PhaseMeans
from workbench.records.summary import summary_of

#: A second request within this time gets the same snapshot.
FRESH_SECONDS = 0.8
#: What the launcher's own host is called where another was sampled, too.
THIS_HOST = "the launcher's"
#: Run folders followed at a time, and until nobody has looked at them for so long.
FOLLOWED, FOLLOWED_SECONDS = 8, 300.0
#: Bytes of their records, whatever the one looked at last has: 8 ranks of 100,000 steps write a quarter of a GB, and
#: to read that again takes a tenth of a second.
FOLLOWED_BYTES = 256 * 2**20
#: Seconds between two times at which what drawing freed goes back to the system.
TRIMMED_SECONDS = 10.0


_LOOKS = itertools.count()


#: Path, time of the last write, bytes.
_File = tuple[str, int, int]


class HostReadings(NamedTuple):
    """What was sampled on one host, and what its sampler told."""

    host: Columns
    gpu: Columns
    cores: Columns
    network: Columns
    processes: Columns
    events: list[Event]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at a run. Columns are per rank; a stream that is not there is missing or empty.

    Readings of a host are those of one; ``select_host`` gives the same look with another's.
    """

    id: str
    status: RunStatus
    #: Empty of a foreign job.
    config: Mapping[str, Any]
    summary: RunSummary | None
    ranks: list[progress.RankProgress]
    steps: Mapping[int, Columns]
    communication: list[CommunicationRow]
    memory: Mapping[int, Columns]
    host: Columns
    gpu: Columns
    launcher_events: list[Event]
    problems: list[str]
    cores: Columns = field(default_factory=dict)
    network: Columns = field(default_factory=dict)
    processes: Columns = field(default_factory=dict)
    #: All hosts that were sampled, by name, that of rank 0 first.
    hosts: Mapping[str, HostReadings] = field(default_factory=dict)

    #: Values that were changed while it went.
    changes: list[ChangeRow] = field(default_factory=list)

    #: Of a run with a time: how many steps it will have, or had, as it told last.
    planned_steps: int | None = None

    #: Counters that ranks in a lab read of their own host's interfaces, by the rank that reads them.
    interfaces: Mapping[int, Columns] = field(default_factory=dict)
    #: The host of each rank that told it.
    rank_hosts: Mapping[int, str] = field(default_factory=dict)
    #: When a rank last noted something besides steps: an evaluation, a checkpoint, a change. None before the first.
    noted_unix: float | None = None
    #: What is known of a foreign job; None for a run of ours.
    job: run_folder.ForeignJob | None = None
    #: Of a thinned look, means over all steps: by rank, and for None of the slowest rank of each step.
    phases: Mapping[int | None, PhaseMeans] = field(default_factory=dict)
    #: Names this look: no other one in this process has it.
    version: str = field(default_factory=lambda: str(next(_LOOKS)))

    def select_host(self, name: str | None) -> Snapshot:
        """With the readings of one of ``hosts``; as it is for any other name."""
        if name is None or name not in self.hosts:
            return self
        host, gpu, cores, network, processes, events = self.hosts[name]
        return replace(
            self,
            host=host,
            gpu=gpu,
            cores=cores,
            network=network,
            processes=processes,
            launcher_events=events,
            version=f"{self.version} {name}",
        )

    @property
    def running(self) -> bool:
        """Whether its status says that it goes on."""
        return self.status.state in ("starting", "running")


class _Collectives:
    """One rank's calls of the last steps; older ones are forgotten, since a long run has millions."""

    def __init__(self, tail: RetainedRecords) -> None:
        self.tail = tail
        self.tables: list[Table] = []

    def refresh(self, first_step: int) -> list[Table]:
        tables = [table for table in self.tables if table.column("step")[-1] >= first_step]
        self.tables = tables + _recent_part(self.tail.read_new(), first_step)
        return self.tables


class _ThinnedStream:
    """A record file of readings, followed without holding all of it."""

    def __init__(self, tail: RetainedRecords, stream: str) -> None:
        self.tail = tail
        self._kept = KeptStream(stream)

    def refresh(self) -> Columns:
        self._kept.add(self.tail.read_new())
        return self._kept.columns()


class LiveRun:
    """Follows one run folder; each ``read`` costs what was written since the last one.

    With ``thinned`` what is held is bounded, however long the run: ``workbench.records.live_records`` says what stays.
    """

    def __init__(self, folder: Path, *, thinned: bool = False) -> None:
        self.folder = folder
        self._thinned = thinned
        self._records = folder / run_folder.RECORDS
        self._sampled = RunRecords(self._records)
        self._undone = 0
        self._begin()
        self._links: Links | None = None
        self._last: tuple[Snapshot, frozenset[_File]] | None = None

    def _begin(self) -> None:
        """Nothing is read yet."""
        self._steps = KeptSteps() if self._thinned else None
        self._step_tails: dict[int, RetainedRecords] = {}
        self._streams: dict[tuple[str, str], Stream | _ThinnedStream] = {}
        self._collectives: dict[int, _Collectives] = {}

    def _begin_anew(self, ranks: list[int]) -> None:
        """Once more was undone: what was read of those steps is among the rest, and they are done again."""
        undone_count = sum(
            event.kind == UNDONE_EVENT for rank in ranks for event in self._sampled.events(rank)
        )
        if undone_count != self._undone:
            self._undone = undone_count
            self._begin()

    def _tail(self, process: str, stream: str) -> RetainedRecords:
        return RetainedRecords(
            self._records / f"{process}.{stream}",
            lambda: self._sampled.events(process) if process.startswith("rank-") else (),
        )

    def read(self) -> Snapshot:
        """Everything that is there by now; what is missing or half-written is left out.

        Of a run that has ended it is the same look again until one of its files changes.
        """
        files = frozenset(_files(self.folder, self._records))
        if self._last is None or self._last[0].running or self._last[1] != files:
            self._last = self._read(), files
        return self._last[0]

    @property
    def held_bytes(self) -> int:
        """Of records that are held at the most; next to none where they are thinned."""
        if self._last is None or self._thinned:
            return 0
        return sum(size for path, _, size in self._last[1] if Path(path).parent == self._records)

    def _read(self) -> Snapshot:
        ranks, processes_of = self._ranks(), self._host_processes()
        self._begin_anew(ranks)
        hosts = {name: self._readings(process) for name, process in processes_of.items()}
        host, gpu, cores, network, processes, events = next(iter(hosts.values()))
        steps = self._steps_of(ranks)
        status = RunStatus.from_folder(self.folder)
        config = run_folder.read_json(self.folder / run_folder.CONFIG) or {}
        return Snapshot(
            id=self.folder.name,
            status=status,
            config=config,
            summary=summary_of(self.folder),
            ranks=progress.read_all(self.folder),
            steps=steps,
            communication=self._communication(steps, status, config),
            memory={rank: self._columns(f"rank-{rank}", "memory") for rank in ranks},
            interfaces=self._interfaces(ranks),
            rank_hosts=hosts_of(self._sampled),
            noted_unix=last_note(self._sampled, ranks),
            job=run_folder.ForeignJob.from_folder(self.folder),
            host=host,
            gpu=gpu,
            launcher_events=events,
            cores=cores,
            network=network,
            processes=processes,
            hosts=hosts,
            changes=change_rows(self._sampled),
            planned_steps=planned_steps(self._sampled),
            problems=self._problems(),
            phases=self._steps.means() if self._steps is not None else {},
        )

    def _steps_of(self, ranks: list[int]) -> dict[int, Columns]:
        if self._steps is None:
            return {rank: self._columns(f"rank-{rank}", "step") for rank in ranks}
        for rank in ranks:
            self._step_tails.setdefault(rank, self._tail(f"rank-{rank}", "step"))
        self._steps.add({rank: self._step_tails[rank].read_new() for rank in ranks})
        return {rank: columns for rank, columns in self._steps.columns().items() if rank in ranks}

    def _host_processes(self) -> dict[str, str]:
        """The name of each sampled host and of the process that sampled it; of none, as if by the launcher."""
        self._sampled.refresh()
        hosts = self._sampled.hosts() or [LAUNCHER]
        return {host_name(process) or THIS_HOST: process for process in hosts}

    def _readings(self, process: str) -> HostReadings:
        return HostReadings(
            host=self._columns(process, "host"),
            gpu=self._columns(process, "gpu"),
            cores=self._columns(process, "core"),
            network=self._columns(process, "network"),
            processes=self._columns(process, "process"),
            events=list(self._sampled.events(process)),
        )

    def _ranks(self) -> list[int]:
        files = (path.name.removesuffix(ARCHIVED) for path in self._records.glob("rank-*.step*"))
        names = {name.removeprefix("rank-").removesuffix(".step") for name in files}
        return sorted(int(name) for name in names if name.isdecimal())

    def _interfaces(self, ranks: list[int]) -> dict[int, Columns]:
        columns = {rank: self._columns(f"rank-{rank}", "network") for rank in ranks}
        return {rank: columns for rank, columns in columns.items() if len(columns.get("time_unix", ()))}

    def _columns(self, process: str, stream: str) -> Columns:
        key = process, stream
        if key not in self._streams:
            tail = self._tail(process, stream)
            whole = self._steps is None
            self._streams[key] = Stream(tail) if whole else _ThinnedStream(tail, stream)
        return self._streams[key].refresh()

    def _communication(
        self, steps: Mapping[int, Columns], status: RunStatus, config: Mapping[str, Any]
    ) -> list[CommunicationRow]:
        """Rows as in a summary, over the last steps that every rank has ended and recorded in detail."""
        window = last_steps(
            [_detailed_steps(columns) for columns in steps.values()], recent_steps(config.get("outer"))
        )
        first = int(window[0]) if len(window) else 0
        tables, exposed = list[Table](), list[Column]()
        for rank, columns in steps.items():
            tail = self._tail(f"rank-{rank}", "comm")
            recent = self._collectives.setdefault(rank, _Collectives(tail)).refresh(first)
            waits = _waits(columns, window)
            tables += recent
            exposed += [seconds_of_calls(table, window, waits) for table in recent]
        if not len(window):
            return []
        return communication_rows(
            tables,
            window,
            len(window) * len(steps),
            self._measured_links(status),
            backend=status.backend or "",
            exposed=exposed,
        )

    def _measured_links(self, status: RunStatus) -> Links:
        """What the run's calibration says; read once, for a run refers to one."""
        if self._links is None:
            self._links = store.calibration_of_run(self.folder.parent, status).links(str(status.backend))
        return self._links

    def _problems(self) -> list[str]:
        tails = [stream.tail for stream in self._streams.values()]
        tails += [*self._step_tails.values(), *(collective.tail for collective in self._collectives.values())]
        problems = [problem for tail in tails for problem in tail.problems]
        return problems + unknown_streams(self._records)


class LiveRuns:
    """Snapshots for everybody: made at most once in ``FRESH_SECONDS``, however many browsers ask.

    With all records, or ``thinned`` to what the page Live draws.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, thinned: bool = False) -> None:
        self._clock, self._thinned = clock, thinned
        self._lock = threading.Lock()
        self._followed: dict[Path, tuple[LiveRun, float, Snapshot]] = {}
        self._trimmed_at = clock()

    def snapshot(self, folder: Path) -> Snapshot:
        """A look at the run that is at most ``FRESH_SECONDS`` old."""
        with self._lock:
            now = self._clock()
            entry = self._followed.pop(folder, None)
            if entry is None or now - entry[1] > FRESH_SECONDS:
                run = entry[0] if entry else LiveRun(folder, thinned=self._thinned)
                entry = run, now, run.read()
            self._followed[folder] = entry
            self._forget(now)
            if now - self._trimmed_at > TRIMMED_SECONDS:
                self._trimmed_at = now
                heap.trim()
            return entry[2]

    def forget(self) -> None:
        """Lets go of what nobody has looked at for a while, also where nobody looks at anything else."""
        with self._lock:
            self._forget(self._clock())

    def _forget(self, now: float) -> None:
        """The run that was looked at longest ago is the first one."""
        while self._followed:
            folder, (_, last_seen, _) = next(iter(self._followed.items()))
            held_bytes = sum(run.held_bytes for run, _, _ in self._followed.values())
            is_within_limit = len(self._followed) <= FOLLOWED and (
                held_bytes <= FOLLOWED_BYTES or len(self._followed) == 1
            )
            if is_within_limit and now - last_seen <= FOLLOWED_SECONDS:
                return
            del self._followed[folder]


def _files(*folders: Path) -> Iterator[_File]:
    """What tells that a file of these folders was written since, or that one came or went."""
    for folder in folders:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                stat = entry.stat()
                yield entry.path, stat.st_mtime_ns, stat.st_size


def last_note(records: RunRecords, ranks: Iterable[int]) -> float | None:
    """When one of these ranks wrote its last event."""
    return max((event.time_unix for rank in ranks for event in records.events(rank)[-1:]), default=None)


def last_steps(ranks: Sequence[np.ndarray[Any, Any]], count: int) -> np.ndarray[Any, Any]:
    """The last ``count`` steps that every rank has ended."""
    return common_steps(ranks)[-count:]


def _detailed_steps(columns: Columns) -> np.ndarray[Any, Any]:
    """The steps whose phases one rank recorded."""
    if not len(columns.get("step", ())):
        return np.empty(0, np.int64)
    return np.asarray(columns["step"][np.isfinite(columns["communication_exposed_seconds"])])


def _waits(columns: Columns, steps: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Seconds of exposed communication of one rank in these steps, all of which it recorded in detail."""
    if not len(steps):
        return np.empty(0)
    places = np.flatnonzero(np.isin(columns["step"], steps))[-len(steps) :]
    return np.asarray(columns["communication_exposed_seconds"][places])


def _recent_part(table: Table, first_step: int) -> list[Table]:
    """The part of a rank's calls that is recent: those are at its end."""
    recent = table.column("step").filled(-1) >= first_step
    return [table.part(int(recent.argmax()), len(table))] if recent.any() else []
