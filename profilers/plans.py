"""The plans of compression that a run followed."""

from __future__ import annotations

import msgspec

from profilers.plan_rows import PlanRow
from profilers.tail import RunRecords

EVENT = "plan"


def plan_rows(records: RunRecords) -> list[PlanRow]:
    """In order, as rank 0 told them; what cannot be read is left out."""
    told = [event for event in records.events(0) if event.kind == EVENT] if 0 in records.ranks() else []
    found = []
    for event in told:
        try:
            found.append(msgspec.convert(event.data, PlanRow))
        except msgspec.ValidationError:
            continue
    return found
