"""Rules about what ranks do themselves: wait for data, do nothing that has a name, or be slower than the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from profilers.analysis.steps import WORK, rank_skew
from profilers.gpu.rank_gpus import GpuReadings
from profilers.model.verdict import Gain, Verdict, keys_in
from profilers.verdicts.evidence import Numbers, RuleInputs, percent, seconds
from profilers.verdicts.machine import idlest_gpu

_DATA = "put data.path on a faster disk, or read less on each rank with a larger parallel.dp"
_HOST = "do more per operation: a larger batch.micro_batch, compile, or a smaller parallel.tp"
#: The same rank has to be the slowest in this part of the steps to be called the straggler.
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
        lost = idle.fraction * inputs.step_seconds
        gaps = replace(
            gaps,
            evidence=f"the GPU of {inputs.place(idle.rank)} is idle for {seconds(lost)} of a mean step "
            f"({percent(idle.fraction)}), not counting waits for data: the host launches kernels too slowly",
            share=idle.fraction,
            seconds=lost,
            rank=idle.rank,
            host=inputs.hosts.get(idle.rank),
            gain=Gain(idle.fraction, "1 - the GPU's utilization - data / step, if it always had work"),
        )
    yield gaps
    if len(inputs.ranks) > 1:
        yield straggler(inputs)


def _waiting(inputs: RuleInputs, name: str, phase: str, threshold: str, meaning: str, advice: str) -> Verdict:
    """A phase in which nothing is computed, on the rank that has most of it."""
    each = inputs.mean(phase)
    row = int(each.argmax())
    rank, lost, share = inputs.ranks[row], float(each[row]), float(each[row]) / inputs.step_seconds
    others = "" if len(each) == 1 else f"; the median rank {seconds(float(np.median(each)))}"
    return Verdict(
        name=name,
        evidence=f"{inputs.place(rank)} spends {seconds(lost)} of a mean step ({percent(share)}) {meaning}{others}",
        threshold=None,
        knob=advice,
        threshold_name=threshold,
        share=share,
        seconds=lost,
        rank=rank,
        host=inputs.hosts.get(rank),
        knobs=keys_in(advice),
        gain=Gain(share, f"{phase} / step, if all of it is hidden"),
    )


@dataclass(frozen=True, slots=True)
class _Slowest:
    """The slowest rank: how far it is behind the median of the others, in which phase, and in which part of the steps.

    ``stage`` is its place in the pipeline, if all ranks at that place are behind.
    """

    rank: int
    seconds: float
    steps_fraction: float
    phase: str
    stage: int | None

    @property
    def is_same(self) -> bool:
        """Whether it is the same rank in most steps."""
        return self.steps_fraction >= SAME_FRACTION


def straggler(inputs: RuleInputs) -> Verdict:
    """How far the slowest rank is behind the median of the others in what it computes; there are at least two."""
    slowest = _slowest(inputs)
    share, host = slowest.seconds / inputs.step_seconds, inputs.hosts.get(slowest.rank)
    delay, often = (
        f"{seconds(slowest.seconds)} ({percent(share)} of a mean step)",
        percent(slowest.steps_fraction),
    )
    stage = "" if slowest.stage is None else f", at position {slowest.stage} of the pipeline,"
    evidence = (
        f"{inputs.place(slowest.rank)}{stage} takes {delay} longer than the median of the others, mostly in "
        f"{slowest.phase}; it is the slowest in {often} of the steps"
    )
    if not slowest.is_same:
        evidence = (
            f"the slowest rank of a step takes {delay} longer than the median rank; it is a different one each time: "
            f"rank {slowest.rank} by the mean over steps, and in {often} of them"
        )
        knob = "check what else runs on the hosts; a larger batch.micro_batch evens out random delays"
        knobs = ["batch.micro_batch"]
    elif slowest.stage is not None:
        knob = "give that position fewer layers with schedule.stage_layers, or use more stages with schedule.chunks"
        knobs = ["schedule.stage_layers", "schedule.chunks"]
    else:
        where = host or "its host"
        knob = f"check the clocks of {where} and what else runs there, or leave it out with a smaller parallel.dp"
        knobs = ["parallel.dp"]
    others = "of the others" if slowest.is_same else "rank"
    return Verdict(
        name="straggler",
        evidence=evidence,
        threshold=None,
        knob=knob,
        threshold_name="straggler",
        share=share,
        seconds=slowest.seconds,
        rank=slowest.rank,
        host=host,
        knobs=knobs,
        gain=Gain(share, f"(slowest rank - median {others}) / step, if it was no slower"),
    )


def _slowest(inputs: RuleInputs) -> _Slowest:
    work, skew = inputs.seconds(*WORK), rank_skew(inputs.measured)
    row, same = skew.row, skew.share >= SAME_FRACTION
    behind = _behind(work, row) if same else work.max(axis=0) - np.median(work, axis=0)
    by_phase = {phase: float(_behind(inputs.seconds(phase), row).mean()) for phase in WORK}
    return _Slowest(
        rank=inputs.ranks[row],
        seconds=max(0.0, float(behind.mean())),
        steps_fraction=skew.share,
        phase=max(by_phase, key=by_phase.__getitem__),
        stage=_slow_stage(inputs, inputs.ranks[row]),
    )


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
