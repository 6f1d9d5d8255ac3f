"""The peak memory of each rank, and the phase of the step that reached it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profilers.model.machine_rows import GpuRow
from profilers.model.run_summary import MemoryRow
from profilers.records.reader import RunRecords
from profilers.records.table import Table

#: What a peak is taken of: the CUDA allocator where there is one, else the process.
PEAK_SOURCES = {"cuda_peak_bytes": "CUDA allocator", "peak_rss_bytes": "resident set"}
#: The peak counts as reached where so much of it was first seen: what creeps up later says nothing of a phase.
REACHED = 0.99


def memory_rows(records: RunRecords, since: int = 0) -> list[MemoryRow]:
    """One row a rank that recorded its memory in the steps from ``since`` on; all of the same kind."""
    tables = {rank: _since(records.table(rank, "memory"), since) for rank in records.ranks()}
    for column in PEAK_SOURCES:
        rows = [_row(rank, table, column) for rank, table in tables.items() if table.column(column).count()]
        if rows:
            return rows
    return []


def _since(table: Table, step: int) -> Table:
    late = table.column("step").filled(-1) >= step
    return table.part(int(late.argmax()) if late.any() else len(table), len(table))


def peak(rows: Sequence[MemoryRow]) -> dict[str, Any]:
    """The keys of a summary that tell the largest peak; empty without a row."""
    if not rows:
        return {}
    most = max(rows, key=lambda row: row.peak_bytes)
    return {
        "peak_memory_bytes": most.peak_bytes,
        "peak_memory_phase": most.phase,
        "peak_memory_rank": most.rank,
    }


def add_outside_bytes(rows: Sequence[MemoryRow], gpus: Sequence[GpuRow]) -> list[MemoryRow]:
    """The rows, with what NVML says that ranks' processes hold of a GPU over the allocators' reserved bytes, in equal
    parts where several ranks share it; without it where one of the two is not known.
    """
    completed = list[MemoryRow]()
    for row in rows:
        gpu = next((gpu for gpu in gpus if row.rank in (gpu.ranks or ())), None)
        reserved_by_rank = [
            row.reserved_bytes for row in rows if gpu is not None and row.rank in (gpu.ranks or ())
        ]
        reserved = [bytes_ for bytes_ in reserved_by_rank if bytes_ is not None]
        if gpu is None or gpu.ranks_memory_bytes is None or len(reserved) != len(gpu.ranks or ()):
            completed.append(row)
        else:
            outside = max(0, gpu.ranks_memory_bytes - sum(reserved)) // len(reserved)
            completed.append(replace(row, outside_allocator_bytes=outside))
    return completed


def peak_index(peaks: NDArray[Any]) -> int:
    """The first of a rank's records in which its highest peak counts as reached; of those without a peak none does.

    ``peaks`` [records]: the highest so far, masked or NaN where a record has none.
    """
    values: NDArray[Any] = np.ma.filled(np.ma.asarray(peaks, float), np.nan)
    return int(np.flatnonzero(values >= REACHED * np.nanmax(values))[0])


def _row(rank: int, table: Table, column: str) -> MemoryRow:
    peaks, phases = table.column(column), table.column("phase")
    highest = int(peaks.max())
    row = peak_index(peaks)
    return MemoryRow(
        rank=rank,
        kind=PEAK_SOURCES[column],
        peak_bytes=highest,
        phase=phases.tolist()[row],
        step=int(table.column("step")[row]),
        reserved_bytes=_most(table, "cuda_reserved_bytes"),
        inactive_split_bytes=_most(table, "cuda_inactive_split_bytes"),
        allocation_retries=_most(table, "cuda_allocation_retries"),
    )


def _most(table: Table, name: str) -> int | None:
    column = table.column(name)
    return int(column.max()) if column.count() else None
