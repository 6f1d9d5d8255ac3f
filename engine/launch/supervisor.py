"""The interface of starting ranks, and the supervisor of a run on local workers.

It sees the run to its end: reports, deaths, hangs, the deadline, and a request to stop.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from engine.config.run_config import RunConfig
from engine.launch import ending
from engine.launch.ending import (
    NetworkWatch,
    ProcessExit,
    find_culprit,
    hanging_rank,
    outcome_of_ranks,
    overdue_outcome,
)
from engine.launch.hang import explain, outcome_of
from engine.launch.workers import Worker
from engine.run.commands import OrderQueue
from engine.run.devices.selection import Devices
from engine.run.messages import RankReport
from engine.run.outcome import EarlyEnd, Ending, RunOutcome, StopAnswer, limits_of
from engine.run.progress import Progress, RankProgress, stopped_processes
from engine.run.run_folder import LOGS


@dataclass(frozen=True, slots=True)
class Launch:
    """One run to start: its folder holds the exact configuration."""

    config: RunConfig
    folder: Path
    devices: Devices
    should_stop: Callable[[], StopAnswer]
    on_ranks: Callable[[list[int]], None] = field(default=lambda pids: None)


class Launcher(Protocol):
    """Starts the ranks of a run and sees it to its end."""

    def run(self, launch: Launch) -> RunOutcome:
        """Run to an ending; never raises for what a rank does."""

    def close(self) -> None:
        """Let go of all ranks."""


_POLL_SECONDS = 0.1
_GRACE_SECONDS = 1.0
_LAST_LINES = 12


class Watch:
    """Watches the workers of one run, which ``began`` at that moment of the monotonic clock. ``clean`` tells afterwards
    whether they can serve another one.

    ``broken`` tells of the network between them what is down, in one line; None if nothing is.
    """

    def __init__(
        self,
        launch: Launch,
        workers: list[Worker],
        began: float,
        broken: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._launch, self._workers, self._began = launch, workers, began
        self._progress = Progress(launch.folder)
        self._orders = OrderQueue(launch.folder, self._progress)
        self._reports: dict[int, RankReport] = {}
        self._exits: dict[int, ProcessExit] = {}
        self._oom_kills = ending.count()
        self._stop_asked_at: float | None = None
        self._early: EarlyEnd | None = None
        self._network = NetworkWatch(broken)
        self._told_at = time.monotonic()
        self._limits = limits_of(launch.config.value_of)
        self._suspect: tuple[int, int, str] | None = None
        self.clean = True

    def wait_for_end(self) -> RunOutcome:
        """Block until there is an ending."""
        try:
            while len(self._reports) < len(self._workers):
                self._listen(_POLL_SECONDS)
                ending = self._trouble() or self._network.find_failure() or self._impatience()
                if ending is not None:
                    self.clean = False
                    return ending
                self._pass_on_stop()
                self._orders.forward_orders()
            outcome = outcome_of_ranks(list(self._reports.values()), [])
            self.clean = outcome.ending.facts.orderly
            if outcome.ending is Ending.STOPPED and self._early is not None:
                return RunOutcome(self._early.ending, self._early.reason)
            return outcome
        finally:
            self._progress.close()

    def _listen(self, seconds: float) -> None:
        sources: dict[Any, int] = {}
        for rank, worker in enumerate(self._workers):
            if rank not in self._reports and rank not in self._exits:
                sources |= {worker.tasks: rank, worker.process.sentinel: rank}
        for source in wait(list(sources), timeout=seconds):
            self._take(sources[source])

    def _take(self, rank: int) -> None:
        worker = self._workers[rank]
        if rank in self._reports or rank in self._exits:
            return
        with contextlib.suppress(EOFError, OSError):  # a closed pipe is a death, told below
            if worker.tasks.poll():
                self._reports[rank] = worker.tasks.recv()
                return
        worker.process.join(timeout=_GRACE_SECONDS)
        self._exits[rank] = self._exit_of(rank, worker.process.exitcode)

    def _exit_of(self, rank: int, exit_code: int | None) -> ProcessExit:
        place_of_rank = next((place for place in self._progress.ranks() if place.rank == rank), None)
        lines = _tail(self._launch.folder / LOGS / f"rank-{rank}.log")
        worker = self._workers[rank]
        killed_by_kernel = exit_code == -9 and ending.was_killed(worker.process.pid or 0, self._oom_kills)
        phase, by_process = (
            place_of_rank.phase if place_of_rank else None,
            ending.ending_of_process(lines, killed_by_kernel),
        )
        return ProcessExit(rank, exit_code, phase, lines, by_process, worker.orphaned)

    def _trouble(self) -> RunOutcome | None:
        """An ending once a rank died or reported a failure; peers get a moment to report theirs."""
        bad = [report for report in self._reports.values() if not report.good]
        if not bad and not self._exits:
            return None
        deadline = time.monotonic() + _GRACE_SECONDS
        while time.monotonic() < deadline and len(self._reports) + len(self._exits) < len(self._workers):
            self._listen(_POLL_SECONDS)
        return self._network.add_cause(
            outcome_of_ranks(list(self._reports.values()), list(self._exits.values()))
        )

    def _impatience(self) -> RunOutcome | None:
        ranks = self._unfinished_ranks()
        patience = self._launch.config.train.step_timeout_seconds
        asked_at = None if self._early else self._stop_asked_at  # who does not answer an early end hangs
        if asked_at is not None and time.monotonic() - asked_at > patience:
            return RunOutcome(Ending.STOPPED, "stopped on request; ranks did not answer and were killed")
        late = overdue_outcome(ranks, self._limits, time.monotonic() - self._began)
        if late is not None:
            return late
        stopped = stopped_processes(ranks, patience)
        culprit = hanging_rank(ranks, patience, stopped, self._limits)
        if culprit is not None:
            # It is the cause only if it still stands there when looked at again.
            suspect, self._suspect = self._suspect, (culprit.rank, culprit.step, culprit.phase)
            if suspect != self._suspect:
                return None
            stuck = explain(self._progress, self._launch.folder)
            culprit, is_known = find_culprit(culprit, ranks, stuck.held_up_by if stuck else (), stopped)
            lines = _tail(self._launch.folder / LOGS / f"rank-{culprit.rank}.log")
            return outcome_of(culprit, is_known, stuck, lines)
        return None

    def _pass_on_stop(self) -> None:
        """An early end is passed on like a stop, and a stop that comes after it takes its place."""
        if self._stop_asked_at is not None and self._early is None:
            return
        answer = self._launch.should_stop()
        if answer:
            self._early = answer if isinstance(answer, EarlyEnd) else None
            self._stop_asked_at = self._stop_asked_at or time.monotonic()
            self._progress.request_stop()

    def _unfinished_ranks(self) -> list[RankProgress]:
        """Where ranks stand that are not done; one that was told of the run and never began stands at its start."""
        places = {place.rank: place for place in self._progress.ranks()}
        age = time.monotonic() - self._told_at
        return [
            places.get(rank)
            or RankProgress(rank, worker.process.pid or 0, -1, "starting", age, state="starting")
            for rank, worker in enumerate(self._workers)
            if rank not in self._reports
        ]


def _tail(path: Path) -> tuple[str, ...]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(text.strip().splitlines()[-_LAST_LINES:])
