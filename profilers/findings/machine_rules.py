"""Rules about the machine: memory that is nearly full, here, and clocks that are held down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from profilers.diagnosis.verdict import Verdict
from profilers.findings.clock_rule import clock_findings
from profilers.findings.observed import Observed
from profilers.findings.units import percent, size
from profilers.memory_summary import KINDS
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
    seen: Observed, memory: Sequence[MemoryRow], gpus: Table, host: Table
) -> Iterator[Verdict]:
    """``gpus`` and ``host`` are readings of the launcher; of the GPUs that ranks compute on, else empty."""
    candidates = [*_limits(seen, memory), *_host(host), *_devices(gpus, len(seen.ranks))]
    if candidates:
        retries = sum(row.allocation_retries or 0 for row in memory)
        yield _pressure(seen, max(candidates, key=lambda one: one.fraction), retries)
    yield from clock_findings(seen, gpus)


def _limits(seen: Observed, memory: Sequence[MemoryRow]) -> Iterator[_Full]:
    limit = seen.setting.memory_limit_bytes
    for row in memory if limit else ():
        if limit and row.kind == _RESIDENT:
            yield _Full(f"rank {row.rank}'s limit", row.peak_bytes / limit, row.peak_bytes, limit, row.rank)


def _devices(gpus: Table, ranks: int) -> Iterator[_Full]:
    for gpu in range(ranks):
        own = (gpus.column("gpu") == gpu).filled(False)
        yield from _fullest(f"GPU {gpu}'s memory", gpus, own, gpu)


def _host(host: Table) -> Iterator[_Full]:
    yield from _fullest("the host's memory", host, np.ones(len(host), dtype=bool), None)


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
