"""The ending of a run, with the rank that caused it, from what the launcher saw of the ranks.

Evidence from the system is read here too: whether the kernel killed a process for want of memory (its log names it;
where that cannot be read, a count has to do), and whether the network between the ranks is down, over which TCP would
only wait.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.run.messages import RankReport
from engine.run.outcome import Ending, Limit, RunOutcome, cause_among, printed_cause
from engine.run.progress import PATIENCE_OUTSIDE_STEPS, WAITING, RankProgress

#: Signals that nothing of ours sends to a process that still computes.
SENT_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """A process that ended without a report: a rank's, or without a ``rank`` the whole command of a job. ``exit_code``
    is negative for a signal, and None where another launcher has it. ``ending`` is what it is known to have ended of,
    as ``ending_of_process`` finds it. An ``orphaned`` one lives, but the server that forked it does not, and nobody
    would be told of its end.
    """

    rank: int | None
    exit_code: int | None
    phase: str | None
    last_lines: tuple[str, ...]
    ending: Ending | None = None
    orphaned: bool = False


def ending_of_process(last_lines: Sequence[str], killed_for_memory: bool) -> Ending | None:
    """What a process that is gone ended of, by what it printed last and what the kernel says; None if none tells."""
    printed = printed_cause(last_lines)
    return cause_among([Ending.OOM if killed_for_memory else None, printed[0] if printed else None])


def outcome_of_ranks(reports: Sequence[RankReport], exits: Sequence[ProcessExit]) -> RunOutcome:
    """One ending for all: a cause beats its consequences (peers of a dead rank see lost connections)."""
    if exits:
        return _outcome_of_exit(min(exits, key=_order_of_exits))
    causes = [report for report in reports if not report.good]
    if causes:
        cause = min(causes, key=lambda report: (-report.ending.facts.precedence, report.rank))
        return RunOutcome(cause.ending, cause.reason, cause.rank, cause.phase, cause.last_lines)
    stopped = any(report.ending is Ending.STOPPED for report in reports)
    return RunOutcome(Ending.STOPPED, "stopped on request") if stopped else RunOutcome(Ending.COMPLETED)


def _order_of_exits(end: ProcessExit) -> tuple[int, bool, int]:
    """Those of which more is known first, by precedence."""
    return -(end.ending or Ending.CRASHED).facts.precedence, end.ending is None, end.rank or 0


def _outcome_of_exit(end: ProcessExit) -> RunOutcome:
    process, code = "the command" if end.rank is None else f"rank {end.rank}", end.exit_code
    if end.ending is not None:
        printed = printed_cause(end.last_lines)
        line = f": {printed[1]}" if printed and printed[0] is end.ending else ""
        reason = f"{process} {end.ending.facts.count_phrase}{line}"
        return RunOutcome(end.ending, reason, end.rank, end.phase, end.last_lines)
    if end.orphaned:
        reason = "the fork server of the ranks died, and they were ended after it"
        return RunOutcome(Ending.CRASHED, reason, None, end.phase, end.last_lines, True)
    reason = f"{process} died without a report" if code is None else f"{process} {describe_exit(code)}"
    outside = code is not None and -code in SENT_FROM_OUTSIDE
    return RunOutcome(Ending.CRASHED, reason, end.rank, end.phase, end.last_lines, outside)


def describe_exit(code: int) -> str:
    """What became of a process with this exit code, negative for a signal."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def hanging_rank(
    ranks: Sequence[RankProgress],
    patience_seconds: float,
    stopped_pids: frozenset[int] = frozenset(),
    limits: Sequence[Limit] = (),
) -> RankProgress | None:
    """The rank that holds the others up, once one has not moved for ``patience_seconds``: for longer outside of steps,
    and where a part of a run has one of the ``limits``, not before that.

    A process the kernel reports as stopped is certain; else the one that stands still outside a wait; if all
    wait, the one furthest behind.
    """
    for rank in ranks:
        if rank.pid in stopped_pids and rank.age_seconds > patience_seconds:
            return rank
    late = [rank for rank in ranks if rank.age_seconds > _patience(rank, patience_seconds, limits)]
    if not late:
        return None
    computing = [rank for rank in late if rank.phase not in WAITING]
    return min(computing or late, key=lambda rank: (rank.step, -rank.age_seconds))


def find_culprit(
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


def overdue_outcome(
    ranks: Sequence[RankProgress], limits: Sequence[Limit], run_seconds: float
) -> RunOutcome | None:
    """A run past one of its ``limits``: after ``run_seconds`` as a whole, with the rank that is furthest behind, or in
    a part of it, with the rank that alone takes so long: of several, who waits for whom is not known.
    """
    for limit in limits:
        state = limit.deadline.state
        if state is None and run_seconds > limit.seconds:
            return _overdue(limit, ranks)
        late = [rank for rank in ranks if rank.state == state and rank.state_seconds > limit.seconds]
        if state is not None and late:
            return _overdue(limit, late)
    return None


def _overdue(limit: Limit, ranks: Sequence[RankProgress]) -> RunOutcome:
    reason, state = f"longer than {limit.deadline.key}={limit.seconds:g}", limit.deadline.state
    if not ranks:
        return RunOutcome(limit.ending, reason)
    last = min(ranks, key=lambda rank: rank.step)
    place = f"in step {last.step}" if last.step >= 0 else "before its first step"
    place += f" ({state})" if state else ""
    is_known = state is None or len(ranks) == 1
    return RunOutcome(limit.ending, f"{reason}, {place}", last.rank if is_known else None, last.phase)


def _patience(rank: RankProgress, seconds: float, limits: Sequence[Limit]) -> float:
    if rank.phase == "finished":
        return float("inf")
    if rank.state is None:
        return seconds
    own = [limit.seconds for limit in limits if limit.deadline.state == rank.state]
    return max([seconds * PATIENCE_OUTSIDE_STEPS, *own])


_LOG = Path("/dev/kmsg")
_COUNTS = Path("/proc/vmstat")
_NAMESPACE = Path("/proc/self/ns/pid")
#: The kernel's log has the process numbers of the first namespace, whose inode is fixed.
_FIRST_NAMESPACE = "pid:[4026531836]"
_KILLED = re.compile(rb"Killed process (\d+) ")
_RECORD_BYTES = 8192


def count() -> int:
    """Processes that this kernel has killed for want of memory since boot; 0 where it does not tell."""
    try:
        rows = _COUNTS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) for row in rows if row.startswith("oom_kill ")), 0)


def was_killed(pid: int | None, before: int) -> bool:
    """Whether it killed a process that died of SIGKILL, ``before`` being the count when that one began; any process
    where its number is not known.
    """
    if count() <= before:
        return False
    if pid is None:
        return True
    named = _killed_pids()
    return named is None or pid in named


def _killed_pids() -> frozenset[int] | None:
    """Processes that its log says it killed; None if the log cannot be read here, or numbers processes otherwise."""
    try:
        if str(_NAMESPACE.readlink()) != _FIRST_NAMESPACE:
            return None
        log = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        killed = _KILLED.findall(b"\n".join(_records(log)))
    finally:
        os.close(log)
    return frozenset(map(int, killed)) or None


def _records(log: int) -> list[bytes]:
    """What the log still has; one read is one record."""
    records = [b"-"]
    while records[-1]:
        try:
            records.append(os.read(log, _RECORD_BYTES))
        except BrokenPipeError:  # overwritten while it was read: go on with the next
            continue
        except OSError:
            break
    return records


_LOOK_SECONDS = 0.5
#: A link that comes back sooner costs time, not the run: TCP sends again what was lost.
_PATIENCE_SECONDS = 2.0


class NetworkWatch:
    """Asks ``broken`` now and then, which tells what is down in one line, or None."""

    def __init__(self, broken: Callable[[], str | None]) -> None:
        self._broken = broken
        self._looked_at = 0.0
        self._since: float | None = None

    def find_failure(self) -> RunOutcome | None:
        """An ending once something has been down for 2 seconds."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return None
        self._looked_at, line = now, self._broken()
        if line is None:
            self._since = None
            return None
        self._since = now if self._since is None else self._since
        return RunOutcome(Ending.COMM_ERROR, line) if now - self._since >= _PATIENCE_SECONDS else None

    def add_cause(self, outcome: RunOutcome) -> RunOutcome:
        """The outcome; where ranks lost each other, with what is down as the reason."""
        line = self._broken() if outcome.ending is Ending.COMM_ERROR else None
        return outcome if line is None else replace(outcome, reason=line)
