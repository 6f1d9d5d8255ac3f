"""Values of the configuration that were changed while a run went, and the step times around them. Pure.

What is measured begins anew with each change: a median over two configurations is one of neither.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from profilers.change_row import ChangeRow
from profilers.step_join import JoinedSteps
from profilers.step_phases import slowest_seconds
from profilers.tail import RunRecords

EVENT = "changed"


def change_rows(records: RunRecords) -> list[ChangeRow]:
    """Every change in order, as rank 0 told it; what cannot be read is left out."""
    told = [event for event in records.events(0) if event.kind == EVENT] if 0 in records.ranks() else []
    found = []
    for event in told:
        try:
            found.append(msgspec.convert({"time_unix": event.time_unix} | event.data, ChangeRow))
        except msgspec.ValidationError:
            continue
    return found


def last_change(rows: list[ChangeRow]) -> int | None:
    """The step from which on the last configuration held; None if it always did."""
    return max((row.step for row in rows), default=None)


def with_times(rows: list[ChangeRow], steps: JoinedSteps) -> list[ChangeRow]:
    """The changes with the median step before and after each, up to the neighbouring ones."""
    places = sorted({row.step for row in rows})
    bounds = [None, *places, None]
    medians = {
        step: (_median(steps, bounds[place], step), _median(steps, step, bounds[place + 2]))
        for place, step in enumerate(places)
    }
    return [
        replace(row, seconds_before=medians[row.step][0], seconds_after=medians[row.step][1]) for row in rows
    ]


def _median(steps: JoinedSteps, first: int | None, end: int | None) -> float | None:
    measured = steps.between(first, end).measured()
    return float(np.median(slowest_seconds(measured))) if len(measured.steps) else None
