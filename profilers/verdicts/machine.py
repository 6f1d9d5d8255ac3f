"""Rules about the machine: memory nearly full, GPU clocks held down, GPUs idle because kernels come too slowly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from profilers.analysis import machine
from profilers.analysis.memory import PEAK_SOURCES
from profilers.analysis.steps import WORK
from profilers.gpu.rank_gpus import GpuReadings
from profilers.model.run_summary import MemoryRow
from profilers.model.verdict import Gain, Verdict, find_keys
from profilers.records.table import Table
from profilers.verdicts.evidence import RuleInputs, percent, seconds, size

#: Where a driver gives no reasons: a clock below this part of the highest one, while there was work, is held down.
_CLOCK_FRACTION, _BUSY_FRACTION = 0.95, 0.5
#: The driver's utilization is a mean over up to a second; fewer readings say little about a run.
LEAST_READINGS = 10
_CLOCK_ADVICE = "raise the power limit or cool the GPU; less work per token with precision=bf16"
_MEMORY_ADVICE = (
    "save memory with memory.recompute, a larger parallel.zero_stage, or a smaller batch.micro_batch"
)


class _Usage(NamedTuple):
    """The most memory in use at one time of what there is; ``rank`` whose it is, None for a host's."""

    resource: str
    used: float
    of: float
    rank: int | None = None

    @property
    def fraction(self) -> float:
        return self.used / self.of


def machine_findings(
    inputs: RuleInputs,
    memory: Sequence[MemoryRow],
    gpus: Sequence[GpuReadings],
    hosts: Mapping[str | None, Table],
) -> Iterator[Verdict]:
    """The fullest memory, and the GPU whose clock was held down most.

    ``gpus`` are those that ranks compute on; ``hosts`` are readings of each host by name, the launcher's own without
    one.
    """
    usages = list(_usages(inputs.setting.memory_limit_bytes, memory, gpus, hosts))
    if usages:
        retries = sum(row.allocation_retries or 0 for row in memory)
        yield _pressure(inputs, max(usages, key=lambda usage: usage.fraction), retries)
    clocks = [finding for gpu in gpus if (finding := _clock(inputs, gpu)) is not None]
    if clocks:
        yield max(clocks, key=lambda finding: finding.share or 0.0)


def _usages(
    limit: float | None,
    memory: Sequence[MemoryRow],
    gpus: Sequence[GpuReadings],
    hosts: Mapping[str | None, Table],
) -> Iterator[_Usage]:
    for row in memory if limit else ():
        if limit and row.kind == PEAK_SOURCES["peak_rss_bytes"]:
            yield _Usage(f"rank {row.rank}'s limit", row.peak_bytes, limit, row.rank)
    tables: list[tuple[str, Table, Any, int | None]] = []
    for name, table in hosts.items():
        whose = "the host" if len(hosts) == 1 or name is None else f"host {name}"
        tables.append((f"{whose}'s memory", table, slice(None), None))
    tables += [(f"GPU {gpu.gpu}'s memory", gpu.table, gpu.gpu_mask, gpu.ranks[0]) for gpu in gpus]
    for resource, table, of_process, rank in tables:
        used, total = (
            table.column("memory_used_bytes")[of_process],
            table.column("memory_total_bytes")[of_process],
        )
        if used.count() and total.count() and total.max() > 0:
            yield _Usage(resource, float(used.max()), float(total.max()), rank)


def _pressure(inputs: RuleInputs, full: _Usage, retries: int) -> Verdict:
    """An allocation that had to be tried again found the memory full, however full it looks at other times."""
    text = (
        f"{full.resource}: {size(full.used)} of {size(full.of)} in use at the peak ({percent(full.fraction)})"
    )
    if retries:
        text += f"; {retries:,} allocations succeeded only after cached blocks were freed"
    elif full.rank is None:
        text += "; beyond that the host swaps or kills a rank"
    return Verdict(
        name="memory_pressure",
        evidence=text,
        threshold=None,
        advice=_MEMORY_ADVICE,
        threshold_name="memory",
        share=max(1.0, full.fraction) if retries else full.fraction,
        rank=full.rank,
        host=None if full.rank is None else inputs.hosts.get(full.rank),
        bytes=full.used,
        knobs=find_keys(_MEMORY_ADVICE),
    )


def _clock(inputs: RuleInputs, gpu: GpuReadings) -> Verdict | None:
    """How much of the time a GPU's clock was held down, and what that cost; None where the driver tells too little."""
    inside = gpu.span_mask(*inputs.measured.span)
    columns = ("throttle_reasons", "sm_clock_mhz", "utilization_fraction")
    masks, clocks, load = (gpu.table.column(name)[inside] for name in columns)
    highest = gpu.table.column("sm_clock_max_mhz")[gpu.gpu_mask]
    top = float(highest.max()) if highest.count() else None
    if not masks.count() and (top is None or not clocks.count()):
        return None
    slowed = np.array([bool(machine.slows(int(mask))) for mask in masks.filled(0)], dtype=bool)
    below = (clocks < _CLOCK_FRACTION * (top or 0.0)).filled(False) & (load > _BUSY_FRACTION).filled(False)
    capped = slowed | (np.ma.getmaskarray(masks) & below)
    share, clocks_capped = float(capped.mean()), clocks[capped]
    part = float(clocks_capped.mean()) / top if top and clocks_capped.count() else 1.0
    lost_seconds = share * max(0.0, 1 - part) * float(inputs.mean(*WORK).mean())
    reasons = sorted({reason for mask in masks[capped].compressed() for reason in machine.slows(int(mask))})
    why = f" ({', '.join(reasons)})" if reasons else ""
    clock_text = f", at {percent(part)} of its highest value" if share else ""
    rank = gpu.ranks[0]
    return Verdict(
        name="clock_cap",
        evidence=f"the clock of GPU {gpu.gpu} ({inputs.place(rank)}) is throttled {percent(share)} of the time"
        f"{why}{clock_text}; this costs up to {seconds(lost_seconds)} per step",
        threshold=None,
        advice=_CLOCK_ADVICE,
        threshold_name="clock",
        share=share,
        seconds=lost_seconds,
        rank=rank,
        host=inputs.hosts.get(rank),
        knobs=find_keys(_CLOCK_ADVICE),
        gain=Gain(
            lost_seconds / inputs.step_seconds,
            "share of time x (1 - clock / highest clock) x computation / step",
        ),
    )


class IdleGpu(NamedTuple):
    """A share of the step, and the rank whose GPU it is."""

    fraction: float
    rank: int


def idlest_gpu(inputs: RuleInputs, gpus: Sequence[GpuReadings]) -> IdleGpu | None:
    """The rank whose GPU ran no kernel for the largest share of the step beside waiting for data.

    Collectives and messages are kernels, too. None without enough readings during the measured steps.
    """
    waiting = dict(zip(inputs.ranks, inputs.mean("data").tolist(), strict=True))
    idle = []
    for gpu in gpus:
        load = gpu.table.column("utilization_fraction")[gpu.span_mask(*inputs.measured.span)].compressed()
        for rank in gpu.ranks if len(load) >= LEAST_READINGS else ():
            data = waiting.get(rank, 0.0) / inputs.step_seconds
            idle.append(IdleGpu(max(0.0, 1.0 - float(load.mean()) - data), rank))
    return max(idle, default=None)
