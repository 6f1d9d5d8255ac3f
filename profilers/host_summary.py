"""What the readings of each host amount to over a stretch of time."""

from __future__ import annotations

import numpy as np

from profilers.counters import growth
from profilers.machine_rows import HostRow
from profilers.table import Column, Table
from profilers.tail import RunRecords, host_name


def host_rows(records: RunRecords, span: tuple[float, float] | None = None) -> list[HostRow]:
    """One row for each host that was sampled, that of rank 0 first.

    ``span`` are two wall-clock times; samples outside do not count, unless there is none inside.
    """
    found = []
    for process in records.hosts():
        samples = _inside(records.table(process, "host"), span)
        if len(samples):
            ranks = records.table(process, "process").column("rank").compressed()
            found.append(_row(host_name(process), np.unique(ranks).tolist(), samples))
    return found


def _inside(samples: Table, span: tuple[float, float] | None) -> Table:
    if span is None or not len(samples):
        return samples
    times = samples.column("time_unix").filled(np.nan)
    first, end = (int(np.searchsorted(times, edge)) for edge in span)
    return samples.part(first, end) if end > first else samples


def _row(name: str | None, ranks: list[int], samples: Table) -> HostRow:
    times = samples.column("time_unix").compressed()
    seconds = float(times[-1] - times[0])

    def rate(field: str) -> float | None:
        grown = growth(samples.column(field))
        return None if grown is None or not seconds else grown / seconds

    used, total = _largest(samples, "memory_used_bytes"), _largest(samples, "memory_total_bytes")
    return HostRow(
        host=name,
        ranks=ranks,
        samples=len(samples),
        cpu_fraction=_mean(samples.column("cpu_fraction")),
        memory_used_bytes=used,
        memory_total_bytes=total,
        network_sent_bytes_per_second=rate("network_sent_bytes"),
        network_received_bytes_per_second=rate("network_received_bytes"),
        disk_read_bytes_per_second=rate("disk_read_bytes"),
        disk_written_bytes_per_second=rate("disk_written_bytes"),
    )


def _mean(values: Column) -> float | None:
    return float(values.mean()) if values.count() else None


def _largest(samples: Table, field: str) -> int | None:
    values = samples.column(field)
    return int(values.max()) if values.count() else None
