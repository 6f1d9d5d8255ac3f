"""Each rank's memory over time, and where the highest peak was. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from workbench.series import GIB, RANKS, Columns, Line, line


class Peak(NamedTuple):
    """The most that a rank had: when, and during what."""

    rank: int
    seconds: float
    gib: float
    step: int
    phase: str

    @property
    def text(self) -> str:
        """In a few words."""
        during = f"{self.phase} of " if self.phase else ""
        return f"peak {self.gib:,.3f} GiB: rank {self.rank}, {during}step {self.step:,}"


class MemorySeries(NamedTuple):
    """A line per rank in GiB; above ``series.RANKS`` ranks only those with the highest peaks."""

    lines: list[Line]
    kind: str
    peak: Peak | None


def memory_series(memory: Mapping[int, Columns], start_unix: float) -> MemorySeries:
    """The CUDA allocator's bytes where there are any, else the process's resident set, since ``start_unix``."""
    written = {rank: columns for rank, columns in sorted(memory.items()) if len(columns.get("step", ()))}
    on_gpu = any(np.isfinite(columns["cuda_allocated_bytes"]).any() for columns in written.values())
    now, most = ("cuda_allocated_bytes", "cuda_peak_bytes") if on_gpu else ("rss_bytes", "peak_rss_bytes")
    peaks = [_peak(rank, columns, most, start_unix) for rank, columns in written.items()]
    known = sorted((peak for peak in peaks if peak is not None), key=lambda peak: -peak.gib)
    lines = [
        line(f"rank {peak.rank}", written[peak.rank]["time_unix"] - start_unix, written[peak.rank][now] / GIB)
        for peak in sorted(known[:RANKS], key=lambda peak: peak.rank)
    ]
    return MemorySeries(lines, "CUDA allocator" if on_gpu else "resident set", known[0] if known else None)


def _peak(rank: int, columns: Columns, field: str, start_unix: float) -> Peak | None:
    """The first record that has a rank's highest peak."""
    peaks = np.asarray(columns[field], dtype=float)
    if not np.isfinite(peaks).any():
        return None
    at = int(np.nanargmax(peaks))
    phases = columns.get("phase")
    return Peak(
        rank,
        float(columns["time_unix"][at] - start_unix),
        float(peaks[at]) / GIB,
        int(columns["step"][at]),
        "" if phases is None else str(phases[at]),
    )
