"""From what the launcher saw of the ranks to one ending, with the rank that caused it. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from engine.messages import RankReport
from engine.outcome import Ending, RunOutcome
from engine.progress import WAITING, RankProgress

_OUTSIDE_STEPS = frozenset({"starting", "building", "validation", "checkpoint", "tracing"})
_PATIENCE_OUTSIDE_STEPS = 5.0


@dataclass(frozen=True, slots=True)
class Death:
    """A rank's process that ended without a report. ``exit_code`` is negative for a signal, and None where another
    launcher has it; an ``orphaned`` one lives, but the server that forked it does not, and nobody would be told of its
    end.
    """

    rank: int
    exit_code: int | None
    phase: str | None
    last_lines: tuple[str, ...]
    out_of_memory: bool
    orphaned: bool = False


def decide(reports: Sequence[RankReport], deaths: Sequence[Death]) -> RunOutcome:
    """One ending for all: a cause beats its consequences (peers of a dead rank see lost connections)."""
    if deaths:
        return _from_death(min(deaths, key=lambda death: (not death.out_of_memory, death.rank)))
    causes = [report for report in reports if not report.good]
    if causes:
        cause = min(causes, key=lambda report: (report.ending is Ending.COMM_ERROR, report.rank))
        return RunOutcome(cause.ending, cause.reason, cause.rank, cause.phase, cause.last_lines)
    stopped = any(report.ending is Ending.STOPPED for report in reports)
    return RunOutcome(Ending.STOPPED, "stopped on request") if stopped else RunOutcome(Ending.COMPLETED)


def _from_death(death: Death) -> RunOutcome:
    if death.out_of_memory:
        reason = f"rank {death.rank} ran out of host memory"
        return RunOutcome(Ending.OOM, reason, death.rank, death.phase, death.last_lines)
    if death.orphaned:
        reason = "the fork server of the ranks died, and they were ended after it"
        return RunOutcome(Ending.CRASHED, reason, None, death.phase, death.last_lines, True)
    code = death.exit_code
    by_signal = code is not None and code < 0
    name = signal.Signals(-code).name if code is not None and by_signal else f"exit code {code}"
    reason = f"rank {death.rank} died" + (" without a word" if code is None else f": {name}")
    outside = code is not None and -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
    return RunOutcome(Ending.CRASHED, reason, death.rank, death.phase, death.last_lines, outside)


def hung(
    ranks: Sequence[RankProgress], patience_seconds: float, stopped_pids: frozenset[int] = frozenset()
) -> RankProgress | None:
    """The rank that holds the others up, once one has not moved for ``patience_seconds``.

    A process the kernel reports as stopped is certain; else the one that stands still outside a wait; if all
    wait, the one furthest behind.
    """
    for rank in ranks:
        if rank.pid in stopped_pids and rank.age_seconds > patience_seconds:
            return rank
    late = [rank for rank in ranks if rank.age_seconds > _patience(rank, patience_seconds)]
    if not late:
        return None
    computing = [rank for rank in late if rank.phase not in WAITING]
    return min(computing or late, key=lambda rank: (rank.step, -rank.age_seconds))


def blamed(
    suspect: RankProgress,
    ranks: Sequence[RankProgress],
    held_up_by: Sequence[int],
    stopped_pids: frozenset[int] = frozenset(),
) -> tuple[RankProgress, bool]:
    """Who holds the others up, and whether that is known: what ranks recorded of their calls decides where all wait.

    On a GPU they do, for the device, whoever is behind: the host of that rank too, if it is a kernel that does not end.
    """
    if suspect.phase not in WAITING or suspect.pid in stopped_pids:
        return suspect, True
    named = [rank for rank in ranks if rank.rank in held_up_by]
    if named:
        return min(named, key=lambda rank: (rank.step, -rank.age_seconds)), True
    return suspect, len(ranks) == 1 or any(rank.step > suspect.step for rank in ranks)


def late(ranks: Sequence[RankProgress], timeout_seconds: float) -> RunOutcome:
    """A run past its deadline, with the rank that is furthest behind."""
    reason = f"longer than train.timeout_seconds={timeout_seconds:g}"
    last = min(ranks, key=lambda rank: rank.step, default=None)
    if last is None:
        return RunOutcome(Ending.TIMED_OUT, reason)
    where = f"in step {last.step}" if last.step >= 0 else "before its first step"
    return RunOutcome(Ending.TIMED_OUT, f"{reason}, {where}", last.rank, last.phase)


def _patience(rank: RankProgress, seconds: float) -> float:
    if rank.phase == "finished":
        return float("inf")
    return seconds * (_PATIENCE_OUTSIDE_STEPS if rank.phase in _OUTSIDE_STEPS else 1.0)
