"""Rules about what ranks do themselves: wait for data, do nothing that has a name, or be slower than the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from profilers.analysis.steps import WORK, rank_skew, skew_row
from profilers.gpu.rank_gpus import GpuReadings
from profilers.model.rows import FIXED, ONE_OFF, ROTATING, SkewRow
from profilers.model.verdict import Gain, Verdict, find_keys
from profilers.verdicts.evidence import Numbers, RuleInputs, percent, seconds
from profilers.verdicts.machine import idlest_gpu

_DATA = (
    "make batches while steps compute (data.ahead), put data.path on a faster disk, or read less on each rank with a "
    "larger parallel.dp"
)
_HOST = "do more per operation: a larger batch.micro_batch, compile, or a smaller parallel.tp"
#: A rank that is the slowest in this part of the steps is the straggler, be they too few to rule out chance.
SAME_FRACTION = 0.75
#: A stage is slow if each of its ranks is behind by this part of the slowest rank's delay.
_STAGE_FRACTION = 0.5


def step_findings(inputs: RuleInputs, gpus: Sequence[GpuReadings]) -> Iterator[Verdict]:
    """Waiting for data, host gaps, and the slowest rank where there are several; ``gpus`` are those of the ranks."""
    yield _waiting(inputs, "input_bound", "data", "input", "waiting for data", _DATA)
    gaps = _waiting(inputs, "host_bound", "other", "host", "outside the named phases", _HOST)
    idle = idlest_gpu(inputs, gpus)
    if idle is not None and idle.fraction > (gaps.share or 0.0):
        # Host gaps as the GPU sees them: between kernels, inside the phases too.
        idle_seconds = idle.fraction * inputs.step_seconds
        gaps = structs.replace(
            gaps,
            evidence=f"the GPU of {inputs.place(idle.rank)} is idle for {seconds(idle_seconds)} of a mean step "
            f"({percent(idle.fraction)}), not counting waits for data: the host launches kernels too slowly",
            share=idle.fraction,
            seconds=idle_seconds,
            rank=idle.rank,
            host=inputs.hosts.get(idle.rank),
            gain=Gain(idle.fraction, "1 - the GPU's utilization - data / step, if it always had work"),
        )
    yield gaps
    if len(inputs.ranks) > 1:
        yield straggler(inputs)


def _waiting(inputs: RuleInputs, name: str, phase: str, threshold: str, meaning: str, advice: str) -> Verdict:
    """A phase in which nothing is computed, on the rank that has most of it."""
    mean_seconds = inputs.mean(phase)
    row = int(mean_seconds.argmax())
    rank, waiting_seconds, share = (
        inputs.ranks[row],
        float(mean_seconds[row]),
        float(mean_seconds[row]) / inputs.step_seconds,
    )
    others = "" if len(mean_seconds) == 1 else f"; the median rank {seconds(float(np.median(mean_seconds)))}"
    return Verdict(
        name=name,
        evidence=f"{inputs.place(rank)} spends {seconds(waiting_seconds)} of a mean step ({percent(share)}) "
        f"{meaning}{others}",
        threshold=None,
        advice=advice,
        threshold_name=threshold,
        share=share,
        seconds=waiting_seconds,
        rank=rank,
        host=inputs.hosts.get(rank),
        knobs=find_keys(advice),
        gain=Gain(share, f"{phase} / step, if all of it is hidden"),
    )


@dataclass(frozen=True, slots=True)
class _SlowestRank:
    """The slowest rank: how far it is behind the median of the others, in which phase, and in which part of the steps.

    ``stage`` is its place in the pipeline, if all ranks at that place are behind. ``skew`` says whether it is always
    the same rank; None if all ranks are alike.
    """

    rank: int
    seconds: float
    steps_fraction: float
    phase: str
    stage: int | None
    skew: SkewRow | None

    @property
    def kind(self) -> str:
        """Of its skew; one that is the slowest in most steps is the same one, be the steps too few to prove it."""
        if self.skew is None or self.steps_fraction >= SAME_FRACTION:
            return ONE_OFF if self.skew is not None and self.skew.kind == ONE_OFF else FIXED
        return self.skew.kind


#: For a rank whose tasks have more micro-batches than those of others.
_UNEVEN = "parallel.task_ranks: proportional gives all ranks as many micro-batches, to within one"


def straggler(inputs: RuleInputs) -> Verdict:
    """How far the slowest rank is behind the median of the others in what it computes, and of which kind that is:
    fixed, rotating or one-off; there are at least two.
    """
    slowest = _slowest(inputs)
    share, host = slowest.seconds / inputs.step_seconds, inputs.hosts.get(slowest.rank)
    evidence = _EVIDENCE[slowest.kind](
        inputs, slowest, f"{seconds(slowest.seconds)} ({percent(share)} of a mean step)"
    )
    advice = _advice(slowest, host)
    counts = inputs.micro_batches
    if slowest.kind == FIXED and counts and max(counts.values()) == counts.get(slowest.rank):
        least = min(counts.values())
        if counts[slowest.rank] > least + 1:
            evidence += (
                f"; of its tasks it has {counts[slowest.rank]} micro-batches a step, another rank has {least}"
            )
            advice = _UNEVEN
    return Verdict(
        name="straggler",
        evidence=evidence,
        threshold=None,
        advice=advice,
        threshold_name="straggler",
        share=share,
        seconds=slowest.seconds,
        rank=slowest.rank,
        host=host,
        knobs=find_keys(advice),
        gain=Gain(share, _GAINS[slowest.kind]),
        kind=slowest.kind,
    )


def _describe_fixed(inputs: RuleInputs, slowest: _SlowestRank, delay: str) -> str:
    stage = "" if slowest.stage is None else f", at position {slowest.stage} of the pipeline,"
    often, count = percent(slowest.steps_fraction), len(inputs.measured.steps)
    proven = slowest.skew is None or slowest.rank in slowest.skew.ranks
    steps = "the steps" if proven else f"{count:,} step{'s' * (count != 1)}, which chance may explain"
    text = (
        f"{inputs.place(slowest.rank)}{stage} takes {delay} longer than the median of the others, mostly in "
        f"{slowest.phase}; it is the slowest in {often} of {steps}"
    )
    others = [rank for rank in (slowest.skew.ranks if slowest.skew else []) if rank != slowest.rank]
    return text + (f"; {_name_ranks(others)} more often than by chance, too" if others else "")


def _describe_rotating(inputs: RuleInputs, slowest: _SlowestRank, delay: str) -> str:
    often = slowest.skew.ranks if slowest.skew else []
    said = _name_ranks(often) if often else f"none of the {len(inputs.ranks)} ranks"
    return (
        f"the slowest rank of a step takes {delay} longer than the median of the others; it is a different one each "
        f"time, {said} more often than by chance"
    )


def _describe_one_off(inputs: RuleInputs, slowest: _SlowestRank, delay: str) -> str:
    assert slowest.skew is not None
    worst, count = slowest.skew.latest[0], slowest.skew.late_steps
    return (
        f"a rank is far behind now and then, in {count:,} of {len(inputs.measured.steps):,} steps: that is {delay}; "
        f"worst: {inputs.place(worst.rank)} in step {worst.step:,}, {seconds(worst.seconds)} behind the others"
    )


_NAMED_RANKS = 4


def _name_ranks(ranks: list[int]) -> str:
    more = "..." if len(ranks) > _NAMED_RANKS else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:_NAMED_RANKS]))}{more}"


_EVIDENCE = {FIXED: _describe_fixed, ROTATING: _describe_rotating, ONE_OFF: _describe_one_off}
_OTHERS = "(slowest rank - median of the others) / step, if it was no slower"
_GAINS = {
    FIXED: _OTHERS,
    ROTATING: _OTHERS,
    ONE_OFF: "what the steps that stand out lie above the median step / step, if they were like it",
}


def _advice(slowest: _SlowestRank, host: str | None) -> str:
    if slowest.kind == ONE_OFF:
        return (
            "look at what ran on the host in those steps; record them with profile.collectives, and keep "
            "checkpoint.every_steps and train.validate_every rare if they coincide"
        )
    if slowest.kind == ROTATING:
        return "check what else runs on the hosts; a larger batch.micro_batch evens out random delays"
    if slowest.stage is not None:
        return "give that position fewer layers with schedule.stage_layers, or use more stages with schedule.chunks"
    host_text = host or "its host"
    return f"check the clocks of {host_text} and what else runs there, or leave it out with a smaller parallel.dp"


def _slowest(inputs: RuleInputs) -> _SlowestRank:
    work, skew = inputs.seconds(*WORK), rank_skew(inputs.measured)
    row, kind = skew.row, skew_row(work, inputs.ranks, inputs.measured.steps.tolist())
    by_phase = {phase: float(_behind(inputs.seconds(phase), row).mean()) for phase in WORK}
    slowest = _SlowestRank(
        rank=inputs.ranks[row],
        seconds=max(0.0, float(_behind(work, row).mean())),
        steps_fraction=skew.share,
        phase=max(by_phase, key=by_phase.__getitem__),
        stage=_slow_stage(inputs, inputs.ranks[row]),
        skew=kind,
    )
    if kind is None or slowest.kind == FIXED:
        return slowest
    if slowest.kind == ROTATING:
        return replace(slowest, seconds=kind.seconds)
    return replace(slowest, seconds=kind.one_off_seconds, rank=kind.latest[0].rank)


def _behind(work: Numbers, row: int) -> Numbers:
    """How much longer a rank works than the median of the others: [steps]."""
    return np.asarray(work[row] - np.median(np.delete(work, row, axis=0), axis=0))


def _slow_stage(inputs: RuleInputs, rank: int) -> int | None:
    """A rank's place in the pipeline, if all ranks at that place are behind."""
    pipelines = inputs.setting.groups.get("pp") or []
    place = next((group.index(rank) for group in pipelines if rank in group and len(group) > 1), None)
    if place is None:
        return None
    stage = [inputs.ranks.index(group[place]) for group in pipelines if group[place] in inputs.ranks]
    means = inputs.mean(*WORK)
    others = np.delete(means, stage)
    if not len(others):
        return None
    behind = means[stage] - np.median(others)
    return place if (behind >= _STAGE_FRACTION * behind.max()).all() else None
