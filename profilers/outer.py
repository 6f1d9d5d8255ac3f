"""The averages over replicas that a run's outer loop took over, from the events that tell of each; pure."""

from __future__ import annotations

from statistics import fmean, median

import msgspec

from profilers.outer_rows import OuterRow
from profilers.tail import RunRecords

EVENT = "outer"


class OuterAverage(msgspec.Struct, frozen=True):
    """One average: taken over after ``step`` in ``round``, of the weights at the end of round ``average_of``."""

    step: int
    round: int
    average_of: int
    staleness: int
    delay_steps: int
    fragment: int
    wait_seconds: float


def outer_averages(records: RunRecords, rank: int) -> list[OuterAverage]:
    """Every average that a rank took over, in order; what cannot be read is left out."""
    found = []
    for event in records.events(rank) if rank in records.ranks() else []:
        if event.kind == EVENT:
            try:
                found.append(msgspec.convert(event.data, OuterAverage))
            except msgspec.ValidationError:
                continue
    return found


def outer_row(records: RunRecords) -> OuterRow | None:
    """All of rank 0; None without an outer loop, or before its first average."""
    found = outer_averages(records, 0)
    if not found:
        return None
    stale = [average.staleness for average in found]
    return OuterRow(
        len(found),
        len({average.round for average in found}),
        min(stale),
        max(stale),
        fmean(average.delay_steps for average in found),
        median(average.wait_seconds for average in found),
    )
