"""The rule about ranks that are slower than the others: which one, where, and whether it is always the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profilers.model.verdict import Gain, Verdict
from profilers.verdicts.evidence import WORK, Numbers, Observed, percent, seconds

#: In so many of the steps the same rank has to be the slowest for being called the straggler.
SAME_FRACTION = 0.75
#: A stage is slow if each of its ranks is behind by this part of the slowest rank's delay.
_STAGE_FRACTION = 0.5


@dataclass(frozen=True, slots=True)
class _Slowest:
    """Who is behind the median of the others, by how much, in what, and in which part of the steps."""

    row: int
    seconds: float
    steps_fraction: float
    phase: str
    stage: int | None

    @property
    def is_same(self) -> bool:
        return self.steps_fraction >= SAME_FRACTION


def _slowest(seen: Observed) -> _Slowest:
    work = seen.seconds(*WORK)
    times = np.bincount(work.argmax(axis=0), minlength=len(work))
    row, fraction = int(times.argmax()), float(times.max() / work.shape[1])
    behind = _behind(work, row) if fraction >= SAME_FRACTION else work.max(axis=0) - np.median(work, axis=0)
    by_phase = {phase: float(np.median(_behind(seen.seconds(phase), row))) for phase in WORK}
    delay = max(0.0, float(np.median(behind)))
    return _Slowest(row, delay, fraction, max(by_phase, key=by_phase.__getitem__), _slow_stage(seen, row))


def _behind(work: Numbers, row: int) -> Numbers:
    """How much longer a rank works than the median of the others: [steps]."""
    return np.asarray(work[row] - np.median(np.delete(work, row, axis=0), axis=0))


def _slow_stage(seen: Observed, row: int) -> int | None:
    """The rank's place in the pipeline, if all ranks at that place are behind."""
    pipelines = seen.setting.groups.get("pp") or []
    rank = seen.ranks[row]
    place = next((group.index(rank) for group in pipelines if rank in group and len(group) > 1), None)
    if place is None:
        return None
    stage = [seen.ranks.index(group[place]) for group in pipelines if group[place] in seen.ranks]
    typical = seen.typical(*WORK)
    others = np.delete(typical, stage)
    if not len(others):
        return None
    behind = typical[stage] - np.median(others)
    return place if (behind >= _STAGE_FRACTION * behind.max()).all() else None


def straggler(seen: Observed) -> Verdict:
    """How far the slowest rank is behind the median of the others in what it computes; there are at least two."""
    found = _slowest(seen)
    rank, share = seen.ranks[found.row], found.seconds / seen.step_seconds
    knob, *knobs = _advice(seen, found)
    return Verdict(
        name="straggler",
        evidence=_who(seen, found, share),
        threshold=None,
        knob=knob,
        threshold_name="straggler",
        share=share,
        seconds=found.seconds,
        rank=rank,
        host=seen.hosts.get(rank),
        knobs=knobs,
        gain=Gain(
            share,
            f"(slowest rank - median {'of the others' if found.is_same else 'rank'}) / step, if it was no slower",
        ),
    )


def _who(seen: Observed, found: _Slowest, share: float) -> str:
    delay, rank = f"{seconds(found.seconds)} ({percent(share)} of a step)", seen.ranks[found.row]
    often = f"{percent(found.steps_fraction)} of the steps"
    if not found.is_same:
        return (
            f"the slowest rank of a step works {delay} longer than the median rank; it is a different one each time, "
            f"most often rank {rank} ({often})"
        )
    stage = "" if found.stage is None else f", at place {found.stage} of the pipeline,"
    return (
        f"{seen.place(rank)}{stage} works {delay} longer than the median of the others, most of it in {found.phase}; "
        f"the slowest in {often}"
    )


def _advice(seen: Observed, found: _Slowest) -> tuple[str, ...]:
    if not found.is_same:
        return (
            "see what else runs on the hosts; a larger batch.micro_batch evens out chance",
            "batch.micro_batch",
        )
    if found.stage is not None:
        return (
            "deal fewer layers to that place with schedule.stage_layers, or more stages with schedule.chunks",
            *("schedule.stage_layers", "schedule.chunks"),
        )
    where = seen.hosts.get(seen.ranks[found.row], "its host")
    return (
        f"see what else runs on {where} and at which clocks, or leave it out with a smaller parallel.dp",
        "parallel.dp",
    )
