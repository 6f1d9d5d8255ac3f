"""The rule about experts: a layer whose router sends too many tokens to few of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profilers.model.rows import ExpertRow
from profilers.model.verdict import Verdict, find_keys
from profilers.verdicts.evidence import percent

_ADVICE = "a larger model.balance_weight evens the load out"
_DROPPED = "; a larger model.capacity_factor drops fewer tokens"
_SPREAD = "; until then model.capacity_factor bounds what the busiest rank of ep has to do"


def expert_findings(rows: Sequence[ExpertRow], has_capacities: bool = True) -> Iterator[Verdict]:
    """The layer whose load is the least even; none without experts. What that costs in time, nobody can tell."""
    if not rows:
        return
    row = max(rows, key=lambda row: row.excess)
    first = max(range(len(row.load)), key=lambda expert: row.load[expert])
    text = (
        f"in layer {row.layer} {percent(row.load[first])} of the choices fall on expert {first} of {len(row.load)} "
        f"({percent(1 / len(row.load))} would be even); {percent(row.excess)} would have to go to others to even it out"
    )
    advice = _ADVICE
    if row.rank_load is not None:
        text += f"; the busiest rank of ep has {row.rank_load:.2f} times the mean one's"
    if row.dropped_fraction:
        text += f"; {percent(row.dropped_fraction)} found no slot and were dropped"
        advice += _DROPPED
    elif row.rank_load is not None and has_capacities:
        advice += _SPREAD
    yield Verdict(
        name="expert_imbalance",
        evidence=text,
        threshold=None,
        advice=advice,
        threshold_name="experts",
        share=row.excess,
        axis=None if row.rank_load is None else "ep",
        knobs=find_keys(advice),
    )
