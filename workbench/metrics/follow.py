"""Runs that go on or ended a moment ago, followed from one scrape to the next; a scrape reads only what is new."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.run import run_folder
from profilers.records.reader import EventTail, RunRecords, Tail, host_name, unknown_streams
from profilers.records.schema import STREAMS
from workbench import archive, runs
from workbench.metrics.sums import CallSums, Readings, StepSums, add_calls, latest

#: How long an ended run stays, so that its last numbers are fetched.
KEEP_SECONDS = 300.0
#: Streams that show when something ran: there is no last reading of them.
TIMELINES = frozenset({"action", "span"})
#: The field that tells what a record is about, where its process alone does not.
KEYS = {"gpu": "gpu", "core": "core", "network": "interface", "process": "rank"}


class FollowedRun:
    """One run folder; ``refresh`` reads what was written since the last call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = folder.name
        self.status: dict[str, Any] = {}
        self.state = "starting"
        self.steps: defaultdict[str, StepSums] = defaultdict(StepSums)
        self.calls: defaultdict[str, defaultdict[tuple[str, str], CallSums]] = defaultdict(
            lambda: defaultdict(CallSums)
        )
        #: Process -> the host that it is on, as far as it is known.
        self.hosts: dict[str, str] = {}
        #: Stream -> process -> key -> field -> the last reading and its time.
        self.readings: dict[str, dict[str, Readings]] = {}
        self.dropped: defaultdict[str, int] = defaultdict(int)
        self.tokens_per_step = _tokens_per_step(folder)
        self._records = folder / run_folder.RECORDS
        self._tails: dict[tuple[str, str], Tail] = {}
        self._events: dict[str, EventTail] = {}

    def refresh(self) -> None:
        """Reads on in every file of the run."""
        self.status = run_folder.read_json(self.folder / run_folder.STATUS) or self.status
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
        found = self.status.get("labels") or {}
        return {name: str(found.get(name) or "") for name in ("study", "trial")}

    @property
    def problems(self) -> list[str]:
        """One line for each thing that could not be read."""
        tails: list[Tail | EventTail] = [*self._tails.values(), *self._events.values()]
        lines = [problem for tail in tails for problem in tail.problems] + unknown_streams(self._records)
        return [f"{self.id}: {line}" for line in lines]

    def tokens_per_second(self) -> float | None:
        """Tokens of all ranks over the last steps that all have ended; a step lasts as long as on its slowest rank."""
        recent = [sums.recent for sums in self.steps.values()]
        common = set.intersection(*map(set, recent)) if recent else set()
        seconds = sum(max(of_rank[step] for of_rank in recent) for step in common)
        if self.tokens_per_step is None or not seconds:
            return None
        return self.tokens_per_step * len(common) / seconds

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
        else:
            of_stream = self.readings.setdefault(stream, {})
            of_stream[process] = latest(table, KEYS.get(stream), of_stream.get(process, {}))

    def _read_events(self, process: str) -> None:
        tail = self._events.setdefault(process, EventTail(self._records / f"{process}.events"))
        for event in tail.read_new():
            if event.kind == "dropped":
                self.dropped[process] += int(event.data.get("count", 0))
            elif event.kind == "environment" and event.data.get("host"):
                self.hosts[process] = str(event.data["host"])


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
        known = self._followed
        self._followed = {each.name: known.get(each.name) or FollowedRun(each) for each in current}
        for run in self._followed.values():
            run.refresh()
        return list(self._followed.values())

    def _is_past(self, folder: Path) -> bool:
        status = run_folder.read_json(folder / run_folder.STATUS)
        if status is None or runs.ending(status)[0] != "ended":
            return False
        ended = status.get("ended_unix") or (folder / run_folder.STATUS).stat().st_mtime
        return self._clock() - float(ended) > self._keep_seconds


def _tokens_per_step(folder: Path) -> int | None:
    config = run_folder.read_json(folder / run_folder.CONFIG) or {}
    try:
        return int(config["batch"]["global_batch"]) * int(config["data"]["sequence_length"])
    except (KeyError, TypeError, ValueError):
        return None
