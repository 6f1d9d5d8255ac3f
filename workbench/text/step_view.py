"""A step of all ranks, the calls of one of them, and one call, as tables and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profilers.collectives.collective_call import CollectiveCall
from profilers.records.schema import PHASES
from workbench.records.step_view import RankStep
from workbench.text import words
from workbench.text.quantities import COUNT, MEGABYTES, MILLISECONDS, Column

_FINELY = MILLISECONDS._replace(format="%,.3f")
#: Said of times in a step.
SINCE = "Since the step began on the first of these ranks, by the clock of rank 0."
ISSUED = f"When the rank called it; on a GPU, when its stream came to it. {SINCE}"
CAN_RUN = f"When the last rank of the group had issued it, too. {SINCE}"
WAITED = (
    "From when this rank issued it until the last one did, or until its own call ended if that was sooner."
)
STOOD = "The part of the call in which the main thread stood still: the rest was hidden behind computation."
BEHIND = "Forward, backward and optimizer beyond the median of the other ranks."


def step_columns(rows: Sequence[RankStep]) -> list[Column]:
    """One line a rank; phases that no rank spent time in are left out."""
    phases = [phase for phase in PHASES if any(row.phases.get(phase) for row in rows)]
    return [
        Column("rank", [row.rank for row in rows], COUNT),
        Column("host", [row.host for row in rows]),
        Column("step", [row.step_seconds for row in rows], MILLISECONDS),
        Column(
            "own work", [row.work_seconds for row in rows], MILLISECONDS, "Forward, backward and optimizer."
        ),
        Column("behind the others", [row.behind_seconds for row in rows], MILLISECONDS, BEHIND),
        *(
            Column(words.ending_words(phase), [row.phases.get(phase) for row in rows], MILLISECONDS)
            for phase in phases
        ),
    ]


def call_columns(calls: Sequence[CollectiveCall], rank: int) -> list[Column]:
    """One line for each call of a rank."""
    attendances = [call.attendance(rank) for call in calls]
    return [
        Column("axis", [call.axis for call in calls]),
        Column("operation", [call.operation for call in calls]),
        Column(
            "number",
            [call.number for call in calls],
            COUNT,
            "From 0 on, of this operation and axis in the step.",
        ),
        Column("bytes", [call.bytes for call in calls], MEGABYTES),
        Column("issued", [attendance.issued for attendance in attendances], _FINELY, ISSUED),
        Column("could run", [call.began for call in calls], _FINELY, CAN_RUN),
        Column("ended", [attendance.ended for attendance in attendances], _FINELY, SINCE),
        Column(
            "waited for others", [attendance.waited_seconds for attendance in attendances], _FINELY, WAITED
        ),
        Column("last rank", [call.last_rank for call in calls], COUNT, "The one that issued it last."),
        Column("stood still", [attendance.exposed_seconds for attendance in attendances], _FINELY, STOOD),
    ]


def collective_call_columns(call: CollectiveCall, hosts: Mapping[int, str | None]) -> list[Column]:
    """One line for each rank of a call."""
    return [
        Column("rank", [rank.rank for rank in call.ranks], COUNT),
        Column("host", [hosts.get(rank.rank) for rank in call.ranks]),
        Column("issued", [rank.issued for rank in call.ranks], _FINELY, ISSUED),
        Column("waited for others", [rank.waited_seconds for rank in call.ranks], _FINELY, WAITED),
        Column("ended", [rank.ended for rank in call.ranks], _FINELY, SINCE),
        Column("stood still", [rank.exposed_seconds for rank in call.ranks], _FINELY, STOOD),
    ]


def meeting(call: CollectiveCall, rank: int) -> str:
    """When a rank issued a call, for whom it waited, and when it ran."""
    attendance = call.attendance(rank)
    issue_text = f"Rank {rank:,} issued it {_ms(attendance.issued)} into the step"
    if attendance.ended is None:
        return f"{issue_text}; it had not ended when the step was written."
    end_text = _ms(attendance.ended)
    if call.group_size > len(call.ranks) + len(call.missing):
        return f"{issue_text} and was through at {end_text}; which ranks it met is not known."
    if len(call.ranks) == 1:
        return f"{issue_text} and was through at {end_text}; no other rank of its group recorded this call."
    if rank == call.last_rank:
        wait_text = (
            f"as the last of {len(call.ranks):,} ranks: the first had waited for {_ms(call.late_seconds)}"
        )
    elif attendance.waited_seconds and attendance.waited_seconds > call.clock_error_seconds:
        wait_text = (
            f"and waited {_ms(attendance.waited_seconds)} for rank {call.last_rank:,}, the last to come"
        )
    else:
        wait_text = "and did not have to wait for another rank"
    run_seconds = max(0.0, attendance.ended - max(call.began, attendance.issued))
    stall_text = (
        ""
        if attendance.exposed_seconds is None
        else f"; its main thread stood still for {_ms(attendance.exposed_seconds)}"
    )
    return f"{issue_text}, {wait_text}. From then on it ran for {_ms(run_seconds)}, until {end_text}{stall_text}."


def slowest(call: CollectiveCall, rank: int) -> str:
    """The call of a step that held a rank longest, and how much of that was waiting for another rank."""
    attendance = call.attendance(rank)
    sentence = f"The slowest collective: {call.operation} on {call.axis}, call {call.number:,}. Rank {rank:,} was in it"
    if attendance.ended is None:
        return f"{sentence} when the step was written."
    text = f"{sentence} for {_ms(attendance.ended - attendance.issued)}"
    if (
        attendance.waited_seconds
        and attendance.waited_seconds > call.clock_error_seconds
        and rank != call.last_rank
    ):
        text += f", {_ms(attendance.waited_seconds)} of them waiting for rank {call.last_rank:,}, the last to come"
    return f"{text}."


def collective_call_note(call: CollectiveCall) -> str:
    """How far to trust the times, and who is missing."""
    clocks = (
        f"Clocks of these ranks are aligned within {_ms(call.clock_error_seconds)}."
        if call.clock_error_seconds
        else "All these ranks read one clock."
    )
    missing_text = (
        f" Ranks without a record of this call: {words.ranks(call.missing)}." if call.missing else ""
    )
    return f"{clocks}{missing_text}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f} ms"
