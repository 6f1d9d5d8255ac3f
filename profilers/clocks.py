"""Ranks' clocks, from the events in which they told their offsets."""

from __future__ import annotations

from profilers.anatomy_rows import ClockRow
from profilers.clock_offset import ClockOffset, Offset
from profilers.records import Event
from profilers.tail import RunRecords

#: The kind of the event with a rank's offset against rank 0.
EVENT = "clock"


def clocks_of(records: RunRecords) -> dict[int, ClockOffset]:
    """Each rank's clock; a rank that told nothing is taken to have that of rank 0."""
    return {rank: _clock(records.events(rank)) for rank in records.ranks()}


def clock_rows(clocks: dict[int, ClockOffset], time_unix: float) -> list[ClockRow]:
    """The offsets at one time; empty if all ranks have one clock."""
    found = {rank: clock.at(time_unix) for rank, clock in clocks.items()}
    if not any(offset.error_seconds for offset in found.values()):
        return []
    return [ClockRow(rank, offset.offset_seconds, offset.error_seconds) for rank, offset in found.items()]


def _clock(events: list[Event]) -> ClockOffset:
    told = [event.data for event in events if event.kind == EVENT]
    names = Offset._fields
    return ClockOffset(
        [Offset(*(float(one[name]) for name in names)) for one in told if all(name in one for name in names)]
    )
