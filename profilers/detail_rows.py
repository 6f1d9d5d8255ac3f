"""How many of the measured steps a run recorded in detail, and why not all. Pure."""

from __future__ import annotations

from profilers.detail import EVENT
from profilers.step_join import JoinedSteps
from profilers.tail import RunRecords

_SOME = (
    "phases, collectives and memory are those of {detailed:,} of the {measured:,} measured steps: of all they would "
    "cost about {cost:.1%} of a step, and profile.budget is {budget:.1%}; set it to null for all"
)


def detail_notes(records: RunRecords, measured: JoinedSteps, detailed: JoinedSteps) -> tuple[str, ...]:
    """A note where some of the measured steps were recorded as a whole only."""
    told = [event.data for rank in records.ranks() for event in records.events(rank) if event.kind == EVENT]
    if not told or len(detailed.steps) == len(measured.steps):
        return ()
    most = max(told, key=lambda data: float(data["cost"]))
    counts = {"detailed": len(detailed.steps), "measured": len(measured.steps)}
    return (_SOME.format(cost=float(most["cost"]), budget=float(most["budget"]), **counts),)
