"""The ranks of a job as they come and go: who sits where, who failed, and which process was gone first."""

from __future__ import annotations

import contextlib
import os
import select
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.launch import ending
from engine.launch.ending import ProcessExit, outcome_of_ranks
from engine.run import progress
from engine.run.messages import RankReport
from engine.run.outcome import RunOutcome, ending_of_error
from engine.run.processes import is_running
from engine.run.run_folder import read_json
from profilers.rank.job_rank import SEATS


@dataclass(slots=True)
class JobRanks:
    """What seats tell; ``look`` reads them again."""

    folder: Path
    seats: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: Ranks whose process ended without a word, the first one first.
    silent: list[int] = field(default_factory=list)
    _watched: dict[int, int] = field(default_factory=dict)
    _poll: select.poll = field(default_factory=select.poll)
    _kills_before: int = field(default_factory=ending.count)

    def look(self) -> bool:
        """Whether any of them tells something new."""
        seats = {}
        for path in (self.folder / SEATS).glob("rank-*.json"):
            seat = read_json(path)
            if seat is not None:
                seats[int(seat["rank"])] = seat
        new, self.seats = seats != self.seats, seats
        for rank, seat in seats.items():
            self._watch(rank, int(seat["pid"]))
        return new

    def wait(self, seconds: float) -> None:
        """Until a rank's process ends, or some seconds are over; the order in which they end is noted."""
        if not self._watched:
            time.sleep(seconds)
            return
        for descriptor, _ in self._poll.poll(seconds * 1e3):
            pid = next(pid for pid, watched in self._watched.items() if watched == descriptor)
            self._poll.unregister(descriptor)
            os.close(descriptor)
            self._watched[pid] = -1
            self.look()
            self.silent += [
                rank
                for rank, seat in self.seats.items()
                if seat["pid"] == pid and not seat.get("ended") and not seat.get("failed")
            ]

    def close(self) -> None:
        """Let go of their processes."""
        for descriptor in self._watched.values():
            if descriptor >= 0:
                os.close(descriptor)
        self._watched = {}

    @property
    def world_size(self) -> int:
        """As they tell; 0 before the first one."""
        return max((int(seat["world_size"]) for seat in self.seats.values()), default=0)

    @property
    def pids(self) -> list[int]:
        """By rank; 0 for those of other hosts."""
        pids = {rank: int(seat["pid"]) for rank, seat in self.seats.items()}
        return [pids.get(rank, 0) for rank in range(self.world_size)]

    def find_value(self, key: str) -> Any:
        """What the first rank says that says it."""
        return next(
            (self.seats[rank][key] for rank in sorted(self.seats) if self.seats[rank].get(key) is not None),
            None,
        )

    def outcome(self, code: int, last_lines: tuple[str, ...]) -> RunOutcome | None:
        """Why the job ended with this exit code, as far as ranks tell; None if none of them does."""
        reports = [report_of_rank(seat) for seat in self.seats.values() if seat.get("failed")]
        only_consequences = all(report.ending.facts.consequence for report in reports)
        if self.silent and only_consequences and code != 0:
            rank = self.silent[0]
            killed = ending.was_killed(int(self.seats[rank]["pid"]), self._kills_before)
            by_lines = ending.ending_of_process(last_lines, killed)
            return outcome_of_ranks([], [ProcessExit(rank, None, self._phase(rank), last_lines, by_lines)])
        return outcome_of_ranks(reports, []) if reports and code != 0 else None

    def _phase(self, rank: int) -> str | None:
        return next((place.phase for place in progress.read(self.folder) if place.rank == rank), None)

    def _watch(self, rank: int, pid: int) -> None:
        if pid in self._watched or not hasattr(os, "pidfd_open"):
            return
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # gone already
            self._watched[pid] = -1
            if rank not in self.silent and not (self.seats[rank].keys() & {"ended", "failed"}):
                self.silent.append(rank)
            return
        self._watched[pid] = descriptor
        self._poll.register(descriptor, select.POLLIN)

    @property
    def alive(self) -> list[int]:
        """Processes of ranks that still run."""
        return [int(seat["pid"]) for seat in self.seats.values() if is_running(int(seat["pid"]))]


def report_of_rank(seat: dict[str, Any]) -> RankReport:
    """What a rank that failed recorded of itself, as a report."""
    failed = seat["failed"]
    text = f"{failed['kind']}: {failed['reason']}"
    reported = ending_of_error(
        text,
        runtime=failed["kind"] == "RuntimeError",
        out_of_memory=failed["out_of_memory"],
        distributed=failed["distributed"],
    )
    return RankReport(int(seat["rank"]), reported, text, None, tuple(failed["last_lines"]))


def last_lines(path: Path, count: int = 12) -> tuple[str, ...]:
    """Of a log; none if there is none."""
    with contextlib.suppress(OSError):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            text = file.read().decode("utf-8", errors="replace")
        return tuple(text.strip().splitlines()[-count:])
    return ()
