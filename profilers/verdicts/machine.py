"""Rules about the machine: memory nearly full, GPU clocks held down, GPUs idle because kernels come too slowly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from profilers.analysis import machine
from profilers.analysis.memory import KINDS
from profilers.gpu.rank_gpus import GpuReadings
from profilers.model.run_summary import MemoryRow
from profilers.model.verdict import Gain, Verdict
from profilers.records.table import Table
from profilers.verdicts.evidence import WORK, Observed, percent, seconds, size

#: Where a driver gives no reasons: a clock below this part of the highest one, while there was work, is held down.
_CLOCK_FRACTION, _BUSY_FRACTION = 0.95, 0.5


def clock_findings(seen: Observed, gpus: Sequence[GpuReadings]) -> Iterator[Verdict]:
    """The GPU whose clock was held down most, of those that ranks compute on."""
    found = [_clock(seen, one) for one in gpus]
    known = [one for one in found if one is not None]
    if known:
        yield max(known, key=lambda one: one.share or 0.0)


def _clock(seen: Observed, one: GpuReadings) -> Verdict | None:
    columns, inside = ("throttle_reasons", "sm_clock_mhz", "utilization_fraction"), one.within(*seen.span)
    masks, clocks, load = (one.table.column(name)[inside] for name in columns)
    highest = one.table.column("sm_clock_max_mhz")[one.own]
    rank = one.ranks[0]
    top = float(highest.max()) if highest.count() else None
    if not masks.count() and (top is None or not clocks.count()):
        return None
    told = np.array([bool(machine.slows(int(mask))) for mask in masks.filled(0)], dtype=bool)
    below = (clocks < _CLOCK_FRACTION * (top or 0.0)).filled(False) & (load > _BUSY_FRACTION).filled(False)
    capped = told | (np.ma.getmaskarray(masks) & below)
    share = float(capped.mean())
    held = clocks[capped]
    part = float(held.mean()) / top if top and held.count() else 1.0
    reasons = sorted({reason for mask in masks[capped].compressed() for reason in machine.slows(int(mask))})
    lost = share * max(0.0, 1 - part) * float(seen.typical(*WORK).mean())
    why = f" ({', '.join(reasons)})" if reasons else ""
    at = f", at {percent(part)} of the highest clock" if share else ""
    return Verdict(
        name="clock_cap",
        evidence=f"the clock of GPU {one.gpu}, of {seen.place(rank)}, is held down {percent(share)} of the time"
        f"{why}{at}; that costs up to {seconds(lost)} a step",
        threshold=None,
        knob="raise the power limit or cool the GPU; less work per token with precision=bf16",
        threshold_name="clock",
        share=share,
        seconds=lost,
        rank=rank,
        host=seen.hosts.get(rank),
        knobs=["precision"],
        gain=Gain(
            lost / seen.step_seconds, "share of time x (1 - clock / highest clock) x computation / step"
        ),
    )


_RESIDENT = KINDS["peak_rss_bytes"]


Mask = np.ndarray[Any, np.dtype[np.bool_]]


class _Full(NamedTuple):
    what: str
    fraction: float
    used: float
    of: float
    rank: int | None = None


def machine_findings(
    seen: Observed,
    memory: Sequence[MemoryRow],
    gpus: Sequence[GpuReadings],
    hosts: Mapping[str | None, Table],
) -> Iterator[Verdict]:
    """``gpus`` are those that ranks compute on; ``hosts`` are readings of each host by
    name, the launcher's own without one.
    """
    candidates = [*_limits(seen, memory), *_hosts(hosts), *_devices(gpus)]
    if candidates:
        retries = sum(row.allocation_retries or 0 for row in memory)
        yield _pressure(seen, max(candidates, key=lambda one: one.fraction), retries)
    yield from clock_findings(seen, gpus)


def _limits(seen: Observed, memory: Sequence[MemoryRow]) -> Iterator[_Full]:
    limit = seen.setting.memory_limit_bytes
    for row in memory if limit else ():
        if limit and row.kind == _RESIDENT:
            yield _Full(f"rank {row.rank}'s limit", row.peak_bytes / limit, row.peak_bytes, limit, row.rank)


def _devices(gpus: Sequence[GpuReadings]) -> Iterator[_Full]:
    for one in gpus:
        yield from _fullest(f"GPU {one.gpu}'s memory", one.table, one.own, one.ranks[0])


def _hosts(hosts: Mapping[str | None, Table]) -> Iterator[_Full]:
    for name, readings in hosts.items():
        whose = "the host" if len(hosts) == 1 or name is None else f"host {name}"
        yield from _fullest(f"{whose}'s memory", readings, np.ones(len(readings), dtype=bool), None)


def _fullest(what: str, table: Table, own: Mask, rank: int | None) -> Iterator[_Full]:
    used, total = table.column("memory_used_bytes")[own], table.column("memory_total_bytes")[own]
    if used.count() and total.count() and total.max() > 0:
        most, whole = float(used.max()), float(total.max())
        yield _Full(what, most / whole, most, whole, rank)


def _pressure(seen: Observed, full: _Full, retries: int) -> Verdict:
    """An allocation that had to be tried again found the memory full, however full it looks at other times."""
    text = (
        f"{size(full.used)} of {size(full.of)} of {full.what} in use at the most ({percent(full.fraction)})"
    )
    if retries:
        text += f"; {retries:,} allocations only went through after cached blocks were given back"
    elif full.rank is None:
        text += "; beyond it the host swaps, or ends a rank"
    return Verdict(
        name="memory_pressure",
        evidence=text,
        threshold=None,
        knob="keep less: memory.recompute, a larger parallel.zero_stage, or a smaller batch.micro_batch",
        threshold_name="memory",
        share=max(1.0, full.fraction) if retries else full.fraction,
        rank=full.rank,
        host=None if full.rank is None else seen.hosts.get(full.rank),
        bytes=full.used,
        knobs=["memory.recompute", "parallel.zero_stage", "batch.micro_batch"],
    )


#: The driver's utilization is a mean over up to a second; fewer readings say little about a run.
LEAST_READINGS = 10


class Idle(NamedTuple):
    """A share of the step, and the rank whose GPU it is."""

    fraction: float
    rank: int


def most_idle(seen: Observed, gpus: Sequence[GpuReadings]) -> Idle | None:
    """The rank whose GPU ran no kernel for the largest share of the step beside waiting for data.

    Collectives and messages are kernels, too. None without enough readings during the measured steps.
    """
    waiting = dict(zip(seen.ranks, seen.typical("data").tolist(), strict=True))
    found = []
    for one in gpus:
        known = one.table.column("utilization_fraction")[one.within(*seen.span)].compressed()
        for rank in one.ranks if len(known) >= LEAST_READINGS else ():
            data = waiting.get(rank, 0.0) / seen.step_seconds
            found.append(Idle(max(0.0, 1.0 - float(known.mean()) - data), rank))
    return max(found, default=None)
