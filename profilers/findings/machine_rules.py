"""Rules about the machine: memory that is nearly full, here, and clocks that are held down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from profilers.diagnosis.verdict import Verdict
from profilers.findings.clock_rule import clock_findings
from profilers.findings.observed import Observed
from profilers.findings.units import percent, size
from profilers.memory_summary import KINDS
from profilers.rank_gpus import GpuReadings
from profilers.run_summary import MemoryRow
from profilers.table import Table

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
