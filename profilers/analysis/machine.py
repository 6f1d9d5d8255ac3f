"""Readings of GPUs and hosts over a span of time as rows of a run's summary. Pure.

The bits of ``REASONS``, which hold a GPU's clocks down, are NVML's nvmlClocksEventReasons (drivers before 535 say
nvmlClocksThrottleReasons; the values are the same). AMD's reasons are mapped to them by
``profilers.gpu.amd_readings``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from profilers.analysis.intervals import growth
from profilers.gpu.rank_gpus import RankGpus
from profilers.model.machine_rows import GpuRow, HostRow
from profilers.records.reader import RunRecords, host_name
from profilers.records.schema import Event, row_fields
from profilers.records.table import Column, Table

#: Bit -> words, in NVML's order.
REASONS: dict[int, str] = {
    0x1: "idle",
    0x2: "application clocks setting",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
    0x100: "display clocks setting",
    0x200: "board limit",
    0x400: "reliability limit",
}
#: Someone chose these, or there is nothing to do: no trouble.
CHOSEN = frozenset({"idle", "application clocks setting", "display clocks setting"})
_HARDWARE, _HARDWARE_CAUSES = 0x8, 0x40 | 0x80


def words(mask: int) -> tuple[str, ...]:
    """What a mask of reasons says; empty if the clocks are as high as they can be.

    "hardware slowdown" is said only where the driver gives no cause of it.
    """
    if mask & _HARDWARE_CAUSES:
        mask &= ~_HARDWARE
    bits = (1 << place for place in range(mask.bit_length()) if mask >> place & 1)
    return tuple(REASONS.get(bit, f"unknown reason {bit:#x}") for bit in bits)


def slows(mask: int) -> tuple[str, ...]:
    """As ``words``, without what someone chose."""
    return tuple(reason for reason in words(mask) if reason not in CHOSEN)


def joules(readings: Iterable[tuple[Table, int]], start_unix: float, end_unix: float) -> float | None:
    """Energy of some GPUs between two wall-clock times, each by its number in a table of readings; None if that of one
    of them is not known, or without any.

    The counter is read at intervals: the mean power between the samples within the span stands for all of it.
    """
    energies = [gpu_joules(table, gpu, start_unix, end_unix) for table, gpu in readings]
    measured = [energy for energy in energies if energy is not None]
    return sum(measured) if measured and len(measured) == len(energies) else None


def joules_of_ranks(
    records: RunRecords, used: RankGpus, start_unix: float, end_unix: float
) -> tuple[float | None, str | None]:
    """As ``joules``, of the GPUs that ranks compute on, of all hosts; or the reason why it is not known. A card of two
    dies counts as a whole and once, also where ranks use one of them.
    """
    if used.unknown or not used.gpus:
        return None, used.reason or "no rank computes on a GPU"
    readings = [(records.table(process, "gpu"), gpu) for process, gpu in used.counters]
    energy = joules(readings, start_unix, end_unix)
    return energy, None if energy is not None else "the driver did not tell the energy of all GPUs in use"


def gpu_joules(gpu_samples: Table, gpu: int, start_unix: float, end_unix: float) -> float | None:
    """Energy of one GPU between two wall-clock times, if it is known."""
    watts = _mean_watts(gpu_samples, gpu, start_unix, end_unix)
    return None if watts is None else watts * (end_unix - start_unix)


def gpus(gpu_samples: Table) -> list[int]:
    """The GPUs that were sampled, in the driver's order."""
    return sorted(set(gpu_samples.column("gpu").compressed().tolist()))


def _mean_watts(gpu_samples: Table, gpu: int, start_unix: float, end_unix: float) -> float | None:
    energy = gpu_samples.column("energy_joules")
    chosen = np.ma.filled(gpu_samples.column("gpu") == gpu, False) & ~np.ma.getmaskarray(energy)
    times, counter = gpu_samples.column("time_unix")[chosen].filled(0.0), energy[chosen].filled(0.0)
    if len(times) < 2:
        return None
    begin, end = max(start_unix, times[0]), min(end_unix, times[-1])
    used = np.interp(end, times, counter) - np.interp(begin, times, counter)
    return float(used / (end - begin)) if end > begin and used >= 0 else None


def gpus_of(records: RunRecords, used: RankGpus, span: tuple[float, float] | None) -> dict[str, Any]:
    """``gpus`` and ``gpus_reason`` of a run's summary; ``used`` are those that ranks compute on, ``span`` as below."""
    hosts = records.hosts()
    rows = [
        replace(row, host=host_name(host), ranks=used.find_ranks(host, row.gpu))
        for host in hosts
        for row in gpu_rows(records.table(host, "gpu"), span)
    ]
    reasons = [
        event.data.get("reason")
        for host in hosts
        for event in records.events(host)
        if event.kind == "nvml_unavailable"
    ]
    reason = next((f"no GPU: {reason}" for reason in reasons if reason), "no GPU was sampled")
    return {"gpus": rows, "gpus_reason": None if rows else reason}


def gpu_notes(records: RunRecords) -> list[str]:
    """``driver_failures`` of all hosts, with their names where there are several."""
    hosts = records.hosts()
    return [
        line
        for host in hosts
        for line in driver_failures(records.events(host), host_name(host) if len(hosts) > 1 else None)
    ]


def driver_failures(events: Iterable[Event], host: str | None = None) -> list[str]:
    """A line for each time that the driver did not answer for a GPU in the middle of a run, in the order they began.

    ``events`` are those of one sampler; ``host`` is named in each line.
    """
    failures: list[tuple[Event, Event | None]] = []
    for event in events:
        if event.kind == "gpu_error":
            failures.append((event, None))
        elif event.kind == "gpu_recovered":
            gpu = event.data.get("gpu")
            failures = [
                (began, event) if ended is None and began.data.get("gpu") == gpu else (began, ended)
                for began, ended in failures
            ]
    return [_trouble(*pair, host) for pair in failures]


def _trouble(began: Event, ended: Event | None, host: str | None) -> str:
    host_text = f" on {host}" if host else ""
    data = began.data
    failure = f"GPU {data.get('gpu')}{host_text} did not answer {data.get('function')}: {data.get('error')}"
    if ended is None:
        return f"{failure}; it has not answered since"
    return f"{failure}; it answered again after {ended.time_unix - began.time_unix:,.1f} s"


def gpu_rows(samples: Table, span: tuple[float, float] | None = None) -> list[GpuRow]:
    """One row for each GPU that was sampled, in the driver's order.

    ``span`` are two wall-clock times; samples outside do not count, unless there is none inside. Limits and counters
    are of the whole run, since they are read less often.
    """
    times = samples.column("time_unix").filled(np.nan)
    inside = np.ones(len(samples), dtype=bool) if span is None else (times >= span[0]) & (times <= span[1])
    return [_gpu_row(samples, gpu, inside, span) for gpu in gpus(samples)]


def _gpu_row(samples: Table, gpu: int, inside: Any, span: tuple[float, float] | None) -> GpuRow:
    of_gpu = np.asarray((samples.column("gpu") == gpu).filled(False))
    chosen = of_gpu & inside if (of_gpu & inside).any() else of_gpu
    times = samples.column("time_unix")[of_gpu].compressed()
    if span is None or not (of_gpu & inside).any():
        span = (float(times.min()), float(times.max())) if len(times) else (0.0, 0.0)
    return GpuRow(
        gpu=gpu,
        samples=int(chosen.sum()),
        energy_joules=gpu_joules(samples, gpu, *span),
        throttled=_throttle_shares(samples.column("throttle_reasons")[chosen]),
        **_row_values(samples, chosen, of_gpu),
    )


def _row_values(samples: Table, chosen: Any, whole: Any) -> dict[str, Any]:
    """Fields of a row that its records name (``in_row``), from the ``chosen`` readings of the measured steps and from
    the ``whole`` run's; both choose records of a table.
    """
    times = samples.column("time_unix")[chosen].compressed()
    seconds = float(times[-1] - times[0]) if len(times) else 0.0
    return {
        name: _SUMMED_UP[how](samples.column(field)[whole if how in _OF_THE_RUN else chosen], seconds)
        for field, how, name in row_fields(samples.record_class)
    }


def _mean(values: Column, _: float) -> float | None:
    return float(values.mean()) if values.count() else None


def _largest(values: Column, _: float) -> float | None:
    largest: float | None = values.max().item() if values.count() else None
    return largest


def _rate(values: Column, seconds: float) -> float | None:
    grown = growth(values)
    return None if grown is None or not seconds else grown / seconds


#: How a field of a row follows from readings over so many seconds, by the names of ``in_row``.
_SUMMED_UP: dict[str, Callable[[Column, float], float | None]] = {
    "mean": _mean,
    "largest": _largest,
    "limit": _largest,
    "added": lambda values, _: growth(values),
    "rate": _rate,
}
_OF_THE_RUN = ("limit", "added")


def _throttle_shares(masks: Column) -> dict[str, float]:
    """Share of the samples in which each reason held the clocks down, the most frequent first."""
    sampled = masks.compressed()
    counts: Counter[str] = Counter()
    for mask, times in zip(*np.unique(sampled, return_counts=True), strict=True):
        for reason in words(int(mask)):
            counts[reason] += int(times)
    return {reason: times / len(sampled) for reason, times in counts.most_common()}


def host_rows(records: RunRecords, span: tuple[float, float] | None = None) -> list[HostRow]:
    """One row for each host that was sampled, that of rank 0 first.

    ``span`` are two wall-clock times; samples outside do not count, unless there is none inside.
    """
    rows = []
    for process in records.hosts():
        samples, processes = (_inside(records.table(process, name), span) for name in ("host", "process"))
        if len(samples):
            ranks = np.unique(records.table(process, "process").column("rank").compressed()).tolist()
            readings = _row_values(samples, slice(None), slice(None)) | _sums_over_ranks(processes)
            rows.append(HostRow(host_name(process), ranks, len(samples), **readings))
    return rows


def _sums_over_ranks(processes: Table) -> dict[str, Any]:
    """Fields of a host's row from the records of its ranks' processes; None where no rank has a reading."""
    numbers = processes.column("rank").filled(-1)
    rows = [_row_values(processes, numbers == rank, numbers == rank) for rank in np.unique(numbers)]
    values_by_name = {
        name: [row[name] for row in rows if row[name] is not None]
        for _, _, name in row_fields(processes.record_class)
    }
    return {name: sum(values) if values else None for name, values in values_by_name.items()}


def _inside(samples: Table, span: tuple[float, float] | None) -> Table:
    if span is None or not len(samples):
        return samples
    times = samples.column("time_unix").filled(np.nan)
    first, end = (int(np.searchsorted(times, edge)) for edge in span)
    return samples.part(first, end) if end > first else samples
