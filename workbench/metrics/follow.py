"""Runs that go on or ended a moment ago, followed from one scrape to the next; a scrape reads only what is new.

What a run's records amount to so far: sums and latest readings, kept up with what was written since.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from engine.config.formulas.batch_ramp import BATCH
from engine.config.run_config import tokens_per_step_of
from engine.config.validation import live_changes
from engine.run import run_folder
from engine.run.run_folder import RunStatus
from profilers.analysis.rounds import RECENT_STEPS, recent_steps
from profilers.records.operations import is_message
from profilers.records.reader import EventTail, RunRecords, Tail, host_name, unknown_streams
from profilers.records.schema import PHASES, STREAMS
from profilers.records.table import Table
from workbench.home import runs
from workbench.records import archive

#: Upper bounds of the step histogram in seconds; the last bucket has none.
STEP_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
#: Some readings are taken once a second and left out of the records in between.
_HELD_SECONDS = 2.0
_TIMES = ("time_unix", "start_unix")


@dataclass(slots=True)
class StepSums:
    """One rank's steps. ``buckets`` counts steps between two bounds; ``recent`` has wall seconds of the last ones, and
    ``recent_tokens`` the rank's tokens in them.

    ``detailed`` counts the steps whose phases were recorded; collectives are of these alone, too.
    """

    window: int = RECENT_STEPS
    buckets: list[int] = field(default_factory=lambda: [0] * (len(STEP_BOUNDS) + 1))
    seconds: float = 0.0
    detailed: int = 0
    cpu_seconds: float = 0.0
    phase_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    recent: dict[int, float] = field(default_factory=dict)
    recent_tokens: dict[int, float] = field(default_factory=dict)
    loss: float | None = None
    gradient_norm: float | None = None

    def add(self, table: Table) -> None:
        """Counts new steps in."""
        if not len(table):
            return
        seconds = table.column("step_seconds").filled(0.0)
        places = np.bincount(np.searchsorted(STEP_BOUNDS, seconds), minlength=len(self.buckets))
        self.buckets = [before + int(new) for before, new in zip(self.buckets, places, strict=True)]
        self.seconds += float(seconds.sum())
        self.cpu_seconds += float(table.column("cpu_seconds").filled(0.0).sum())
        self.detailed += int(table.column(f"{PHASES[0]}_seconds").count())
        for phase in PHASES:
            self.phase_seconds[phase] += float(table.column(f"{phase}_seconds").filled(0.0).sum())
        self._remember(table.part(max(0, len(table) - self.window), len(table)))

    def _remember(self, last: Table) -> None:
        steps = last.column("step").filled(-1).tolist()
        seconds = last.column("step_seconds").filled(0.0) + last.column("between_seconds").filled(0.0)
        self.recent = self._last(self.recent, steps, seconds.tolist())
        tokens = last.column("tokens").filled(0).tolist()
        self.recent_tokens = self._last(self.recent_tokens, steps, tokens)
        self.loss = last.column("loss").tolist()[-1]
        self.gradient_norm = last.column("gradient_norm").tolist()[-1]

    def _last(self, before: dict[int, float], steps: list[int], values: list[float]) -> dict[int, float]:
        values_by_step = before | dict(zip(steps, values, strict=True))
        return {step: values_by_step[step] for step in sorted(values_by_step)[-self.window :]}


@dataclass(slots=True)
class CallSums:
    """One rank's collectives of one axis and operation.

    ``seconds`` only of calls whose time is known; None of messages, which have none.
    """

    calls: int = 0
    bytes: int = 0
    seconds: float | None = 0.0
    exposed_seconds: float = 0.0


def add_calls(sums: defaultdict[tuple[str, str], CallSums], table: Table) -> None:
    """Counts new collectives in, by axis and operation."""
    (axes, axis_names), (operations, operation_names) = table.codes("axis"), table.codes("operation")
    columns = {name: table.column(name).filled(0) for name in ("bytes", "seconds", "exposed_seconds")}
    for axis, axis_name in axis_names.items():
        for operation, operation_name in operation_names.items():
            chosen = np.ma.filled((axes == axis) & (operations == operation), False)
            if not (count := int(np.count_nonzero(chosen))):
                continue
            total = sums[axis_name, operation_name]
            total.calls += count
            total.bytes += int(columns["bytes"][chosen].sum())
            seconds = float(columns["seconds"][chosen].sum())
            total.seconds = None if is_message(operation_name) else (total.seconds or 0.0) + seconds
            total.exposed_seconds += float(columns["exposed_seconds"][chosen].sum())


@dataclass(slots=True)
class ExpertSums:
    """What fell on one expert of a layer from one rank's tokens, in all detailed steps; ``last_choices`` and
    ``last_probability`` are of the last one, as is ``last_residual`` where tokens that are alike travel as
    one; ``buckets`` of these were sent.
    """

    choices: int = 0
    dropped: int = 0
    last_choices: int = 0
    last_probability: float = 0.0
    buckets: int = 0
    last_residual: float | None = None


def add_experts(sums: defaultdict[tuple[int, int], ExpertSums], table: Table) -> None:
    """Counts new records in, by layer and expert."""
    names = ("layer", "expert", "choices", "dropped", "probability", "buckets", "residual")
    columns = [table.column(name).tolist() for name in names]
    for layer, expert, choices, dropped, probability, buckets, residual in zip(*columns, strict=True):
        total = sums[layer, expert]
        total.choices += choices
        total.dropped += dropped
        total.buckets += buckets or 0
        total.last_choices, total.last_probability, total.last_residual = choices, probability, residual


@dataclass(slots=True)
class TaskSums:
    """What a rank had of a task: micro-batches of all steps, and the loss of the last step that has one."""

    micro_batches: int = 0
    last_loss: float | None = None


def add_tasks(sums: defaultdict[str, TaskSums], table: Table) -> None:
    """Counts new records in, by task."""
    columns = [table.column(name).tolist() for name in ("task", "micro_batches", "loss")]
    for task, micro_batches, loss in zip(*columns, strict=True):
        sums[task].micro_batches += micro_batches
        sums[task].last_loss = sums[task].last_loss if loss is None else loss


#: Value of the key -> field -> when it was read, in seconds of the wall clock, and the number.
Readings = dict[str, dict[str, tuple[float, float]]]


def latest(table: Table, key: str | None, before: Readings) -> Readings:
    """The last numbers of each value of ``key``; ``before`` is what earlier records told.

    Without a key all records are of one thing. What was not available for two seconds up to the last record, whatever
    that one is of, is left out: a GPU that was lost has no readings. So are times, steps, names and the key.
    """
    if not len(table):
        return before
    left_out = (*_TIMES, "step", key)
    names = [field.name for field in fields(table.record_class) if field.name not in left_out]
    columns = {name: table.column(name) for name in names}
    numbers = {name: column for name, column in columns.items() if column.dtype.kind in "iuf"}
    times = table.column("time_unix").filled(0.0)
    since = times.max() - _HELD_SECONDS
    readings = {
        subject: {name: read for name, read in values.items() if read[0] >= since}
        for subject, values in before.items()
    }
    for subject, rows in _rows(table, key).items():
        recent, readings_of = rows[times[rows] >= since], readings.setdefault(subject, {})
        for name, column in numbers.items():
            measured = recent[~np.ma.getmaskarray(column)[recent]]
            if len(measured):
                readings_of[name] = float(times[measured[-1]]), float(column[measured[-1]])
    return {subject: readings_of for subject, readings_of in readings.items() if readings_of}


def _rows(table: Table, key: str | None) -> dict[str, np.ndarray[Any, np.dtype[np.intp]]]:
    """Places of the records of each value of ``key``."""
    if key is None:
        return {"": np.arange(len(table))}
    keys = table.column(key)
    values = np.unique(keys.compressed()).tolist()
    return {str(subject): np.flatnonzero(np.ma.filled(keys == subject, False)) for subject in values}


#: How long an ended run stays, so that its last numbers are fetched.
KEEP_SECONDS = 300.0
#: Streams that show when something ran: there is no last reading of them.
TIMELINES = frozenset({"action", "span"})
#: A reading of a machine is shown for so long after the last one came, or for so many intervals where they are longer;
#: a sampler that stands still tells nothing.
FRESH_SECONDS, FRESH_INTERVALS = 10.0, 3
#: Read as often as a step is through, however long that takes.
PER_STEP = "memory"
#: The field that tells what a record is about, where its process alone does not.
KEYS = {"gpu": "gpu", "core": "core", "network": "interface", "process": "rank"}


class FollowedRun:
    """One run folder; ``refresh`` reads what was written since the last call."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        self.id = folder.name
        self.status = RunStatus()
        self.state = "starting"
        config = run_folder.read_json(folder / run_folder.CONFIG) or {}
        window = recent_steps(config.get("outer"))
        self.steps: defaultdict[str, StepSums] = defaultdict(lambda: StepSums(window))
        self.calls: defaultdict[str, defaultdict[tuple[str, str], CallSums]] = defaultdict(
            lambda: defaultdict(CallSums)
        )
        self.experts: defaultdict[str, defaultdict[tuple[int, int], ExpertSums]] = defaultdict(
            lambda: defaultdict(ExpertSums)
        )
        self.tasks: defaultdict[str, defaultdict[str, TaskSums]] = defaultdict(lambda: defaultdict(TaskSums))
        #: Process -> the host that it is on, as far as it is known.
        self.hosts: dict[str, str] = {}
        #: Stream -> process -> key -> field -> the last reading and its time.
        self.readings: dict[str, dict[str, Readings]] = {}
        #: Stream and process -> when records of it came last, by this process's clock.
        self._last_arrival: dict[tuple[str, str], float] = {}
        self.dropped: defaultdict[str, int] = defaultdict(int)
        self.tokens_per_step = _tokens_per_step(folder)
        self._fresh_seconds = max(FRESH_SECONDS, FRESH_INTERVALS * _interval_seconds(folder))
        self._records = folder / run_folder.RECORDS
        self._tails: dict[tuple[str, str], Tail] = {}
        self._events: dict[str, EventTail] = {}

    def refresh(self) -> None:
        """Reads on in every file of the run."""
        status = RunStatus.from_folder(self.folder)
        self.status = status if status.keys else self.status
        state, outcome, _ = runs.ending(self.status)
        self.state = outcome or state
        if self.tokens_per_step is None:
            self.tokens_per_step = _tokens_per_step(self.folder)
        for process in RunRecords(self._records).processes():
            self._read_events(process)
            if (host := host_name(process)) is not None:
                self.hosts[process] = host
            for stream in STREAMS.keys() - TIMELINES:
                self._read(process, stream)

    @property
    def labels(self) -> dict[str, str]:
        """Study and trial of a run, empty where it has none."""
        return {name: str(self.status.labels.get(name) or "") for name in ("study", "trial")}

    @property
    def problems(self) -> list[str]:
        """One line for each thing that could not be read."""
        tails: list[Tail | EventTail] = [*self._tails.values(), *self._events.values()]
        lines = [problem for tail in tails for problem in tail.problems] + unknown_streams(self._records)
        return [f"{self.id}: {line}" for line in lines]

    @property
    def goes_on(self) -> bool:
        """Whether what was read last may still be so."""
        return self.state in ("starting", "running")

    def is_current(self, stream: str, process: str) -> bool:
        """Whether the last readings of a stream may still be so: of a run that goes on, and not of long ago."""
        age = self._clock() - self._last_arrival.get((stream, process), float("-inf"))
        return self.goes_on and (stream == PER_STEP or age <= self._fresh_seconds)

    def tokens_per_second(self) -> float | None:
        """Tokens of all ranks over the wall time of the last steps that all have ended, whole rounds; the mean over
        ranks. None of a run that is over.
        """
        if not self.goes_on:
            return None
        recent = [sums.recent for sums in self.steps.values()]
        common = set.intersection(*map(set, recent)) if recent else set()
        seconds = sum(of_rank[step] for of_rank in recent for step in common) / max(1, len(recent))
        if not seconds:
            return None
        if self.tokens_per_step is not None:
            return self.tokens_per_step * len(common) / seconds
        if not _has_own_lengths(self.folder):
            return None
        return sum(sums.recent_tokens[step] for sums in self.steps.values() for step in common) / seconds

    def _read(self, process: str, stream: str) -> None:
        key = process, stream
        if key not in self._tails:
            path = self._records / f"{process}.{stream}"
            if not path.exists() and not archive.archived_path(path).exists():
                return
            self._tails[key] = archive.tail(path)
        table, rank = self._tails[key].read_new(), process.removeprefix("rank-")
        if stream == "step":
            self.steps[rank].add(table)
        elif stream == "comm":
            add_calls(self.calls[rank], table)
        elif stream == "expert":
            add_experts(self.experts[rank], table)
        elif stream == "task":
            add_tasks(self.tasks[rank], table)
        else:
            if len(table):
                self._last_arrival[stream, process] = self._clock()
            of_stream = self.readings.setdefault(stream, {})
            of_stream[process] = latest(table, KEYS.get(stream), of_stream.get(process, {}))

    def _read_events(self, process: str) -> None:
        tail = self._events.setdefault(process, EventTail(self._records / f"{process}.events"))
        for event in tail.read_new():
            if event.kind == "dropped":
                self.dropped[process] += int(event.data.get("count", 0))
            elif event.kind == "environment" and event.data.get("host"):
                self.hosts[process] = str(event.data["host"])
            elif event.kind == live_changes.EVENT and event.data.get("key") == BATCH:
                self.tokens_per_step = _tokens_per_step(self.folder, event.data.get("new"))


class Follower:
    """All runs of a home that go on, or ended less than ``keep_seconds`` ago."""

    def __init__(
        self, home: Path, keep_seconds: float = KEEP_SECONDS, clock: Callable[[], float] = time.time
    ) -> None:
        self._home = home
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._followed: dict[str, FollowedRun] = {}
        self._past: set[str] = set()

    def runs(self) -> list[FollowedRun]:
        """Those runs, the oldest first, read up to now."""
        folders = [folder for folder in runs.run_folders(self._home) if folder.name not in self._past]
        self._past |= {folder.name for folder in folders if self._is_past(folder)}
        current = [folder for folder in folders if folder.name not in self._past]
        known_runs = self._followed
        self._followed = {
            run.name: known_runs.get(run.name) or FollowedRun(run, self._clock) for run in current
        }
        for run in self._followed.values():
            run.refresh()
        return list(self._followed.values())

    def _is_past(self, folder: Path) -> bool:
        status = RunStatus.from_folder(folder)
        if not status.keys or runs.ending(status)[0] != "ended":
            return False
        ended = status.ended_unix or (folder / run_folder.STATUS).stat().st_mtime
        return self._clock() - float(ended) > self._keep_seconds


def _interval_seconds(folder: Path) -> float:
    config = run_folder.read_json(folder / run_folder.CONFIG) or {}
    try:
        return float(config["profile"]["host_interval_seconds"])
    except (KeyError, TypeError, ValueError):
        return 0.0


def _has_own_lengths(folder: Path) -> bool:
    """Whether samples are documents, whose tokens each rank tells."""
    data = (run_folder.read_json(folder / run_folder.CONFIG) or {}).get("data")
    return isinstance(data, dict) and data.get("documents") == "whole"


def _tokens_per_step(folder: Path, batch: int | None = None) -> int | None:
    if (job := run_folder.ForeignJob.from_folder(folder)) is not None:
        return job.tokens_per_step
    return tokens_per_step_of(run_folder.read_json(folder / run_folder.CONFIG) or {}, batch)
