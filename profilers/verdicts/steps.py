"""Rules about what ranks do themselves: wait for data, do nothing that has a name, or be slower than the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from profilers.gpu.rank_gpus import GpuReadings
from profilers.model.verdict import Gain, Verdict
from profilers.verdicts.evidence import Observed, percent, seconds
from profilers.verdicts.machine import Idle, most_idle
from profilers.verdicts.straggler import straggler


def step_findings(seen: Observed, gpus: Sequence[GpuReadings]) -> Iterator[Verdict]:
    """Waiting for data, host gaps, and the slowest rank where there are several. ``gpus`` are those that ranks
    compute on.
    """
    yield _waiting(seen, "input_bound", "data", "input", "waiting for data", _DATA)
    gaps = _waiting(
        seen, "host_bound", "other", "host", "between the phases, where nothing named runs", _HOST
    )
    idle = most_idle(seen, gpus)
    yield gaps if idle is None or idle.fraction <= (gaps.share or 0.0) else _launching(seen, gaps, idle)
    if len(seen.ranks) > 1:
        yield straggler(seen)


_DATA = (
    "put data.path on a faster disk, or read less on each rank with a larger parallel.dp",
    "data.path",
    "parallel.dp",
)
_HOST = (
    "do more per operation: a larger batch.micro_batch, compile, or a smaller parallel.tp",
    *("batch.micro_batch", "compile", "parallel.tp"),
)


def _waiting(
    seen: Observed, name: str, phase: str, threshold: str, meaning: str, advice: tuple[str, ...]
) -> Verdict:
    """A phase in which nothing is computed, on the rank that has most of it."""
    each = seen.typical(phase)
    row = int(each.argmax())
    lost, share = float(each[row]), float(each[row]) / seen.step_seconds
    others = "" if len(each) == 1 else f"; the median rank {seconds(float(np.median(each)))}"
    where = seen.place(seen.ranks[row])
    return Verdict(
        name=name,
        evidence=f"{where} spends {seconds(lost)} of a step ({percent(share)}) {meaning}{others}",
        threshold=None,
        knob=advice[0],
        threshold_name=threshold,
        share=share,
        seconds=lost,
        rank=seen.ranks[row],
        host=seen.hosts.get(seen.ranks[row]),
        knobs=list(advice[1:]),
        gain=Gain(share, f"{phase} / step, if all of it is hidden"),
    )


def _launching(seen: Observed, gaps: Verdict, idle: Idle) -> Verdict:
    """Host gaps as the GPU sees them: between kernels, inside the phases too."""
    lost = idle.fraction * seen.step_seconds
    return replace(
        gaps,
        evidence=f"the GPU of {seen.place(idle.rank)} runs no kernel for {seconds(lost)} of a step "
        f"({percent(idle.fraction)}) beside waiting for data: the host launches too slowly",
        share=idle.fraction,
        seconds=lost,
        rank=idle.rank,
        host=seen.hosts.get(idle.rank),
        gain=Gain(idle.fraction, "1 - the GPU's utilization - data / step, if it always had work"),
    )
