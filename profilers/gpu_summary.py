"""What the readings of each GPU amount to over a stretch of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from profilers import energy, throttle
from profilers.counters import growth
from profilers.machine_rows import GpuRow
from profilers.rank_gpus import RankGpus
from profilers.records import Event
from profilers.table import Column, Table
from profilers.tail import RunRecords, host_name

#: Fields of GpuRow that are the mean, or the largest, of a field of GpuSample.
_MEANS = {
    "utilization": "utilization_fraction",
    "sm_active": "sm_active_fraction",
    "sm_occupancy": "sm_occupancy_fraction",
    "tensor_active": "tensor_active_fraction",
    "dram_active": "dram_active_fraction",
    "power_watts": "power_watts",
    "sm_clock_mhz": "sm_clock_mhz",
    "pcie_tx_bytes_per_second": "pcie_tx_bytes_per_second",
    "pcie_rx_bytes_per_second": "pcie_rx_bytes_per_second",
}
_LARGEST = {
    "memory_used_bytes": "memory_used_bytes",
    "memory_total_bytes": "memory_total_bytes",
    "ranks_memory_bytes": "ranks_memory_bytes",
    "max_power_watts": "power_watts",
    "power_limit_watts": "power_limit_watts",
    "max_temperature_celsius": "temperature_celsius",
    "slowdown_celsius": "slowdown_celsius",
    "sm_clock_max_mhz": "sm_clock_max_mhz",
}
_INTEGERS = frozenset({"memory_used_bytes", "memory_total_bytes", "ranks_memory_bytes"})


def gpus_of(records: RunRecords, used: RankGpus, span: tuple[float, float] | None) -> dict[str, Any]:
    """``gpus`` and ``gpus_reason`` of a run's summary; ``used`` are those that ranks compute on, ``span`` as below."""
    hosts = records.hosts()
    rows = [
        replace(row, host=host_name(host), ranks=used.on(host, row.gpu))
        for host in hosts
        for row in gpu_rows(records.table(host, "gpu"), span)
    ]
    told = [
        event.data.get("reason")
        for host in hosts
        for event in records.events(host)
        if event.kind == "nvml_unavailable"
    ]
    reason = next((f"no GPU: {reason}" for reason in told if reason), "no GPU was sampled")
    return {"gpus": rows, "gpus_reason": None if rows else reason}


def gpu_notes(records: RunRecords) -> list[str]:
    """``troubles`` of all hosts, with their names where there are several."""
    hosts = records.hosts()
    return [
        line
        for host in hosts
        for line in troubles(records.events(host), host_name(host) if len(hosts) > 1 else None)
    ]


def troubles(events: Iterable[Event], host: str | None = None) -> list[str]:
    """A line for each time that the driver did not answer for a GPU in the middle of a run, in the order they began.

    ``events`` are those of one sampler; ``host`` is named in each line.
    """
    told: list[tuple[Event, Event | None]] = []
    for event in events:
        if event.kind == "gpu_error":
            told.append((event, None))
        elif event.kind == "gpu_recovered":
            gpu = event.data.get("gpu")
            told = [
                (began, event) if ended is None and began.data.get("gpu") == gpu else (began, ended)
                for began, ended in told
            ]
    return [_trouble(*pair, host) for pair in told]


def _trouble(began: Event, ended: Event | None, host: str | None) -> str:
    where = f" on {host}" if host else ""
    what = f"GPU {began.data.get('gpu')}{where} did not answer {began.data.get('function')}: {began.data.get('error')}"
    if ended is None:
        return f"{what}; it has not answered since"
    return f"{what}; it answered again after {ended.time_unix - began.time_unix:,.1f} s"


def gpu_rows(samples: Table, span: tuple[float, float] | None = None) -> list[GpuRow]:
    """One row for each GPU that was sampled, in the driver's order.

    ``span`` are two wall-clock times; samples outside do not count, unless there is none inside. Limits and counters
    are of the whole run, since they are read less often.
    """
    times = samples.column("time_unix").filled(np.nan)
    inside = np.ones(len(samples), dtype=bool) if span is None else (times >= span[0]) & (times <= span[1])
    return [_row(samples, gpu, inside, span) for gpu in energy.gpus(samples)]


def _row(samples: Table, gpu: int, inside: Any, span: tuple[float, float] | None) -> GpuRow:
    own = np.asarray((samples.column("gpu") == gpu).filled(False))
    chosen = own & inside if (own & inside).any() else own
    times = samples.column("time_unix")[own].compressed()
    if span is None or not (own & inside).any():
        span = (float(times.min()), float(times.max())) if len(times) else (0.0, 0.0)
    known: dict[str, Any] = {name: _mean(samples.column(field)[chosen]) for name, field in _MEANS.items()}
    for name, field in _LARGEST.items():
        whole = name in ("power_limit_watts", "slowdown_celsius", "sm_clock_max_mhz")
        largest = _largest(samples.column(field)[own if whole else chosen])
        known[name] = int(largest) if largest is not None and name in _INTEGERS else largest
    for name in ("nvlink_tx_bytes", "nvlink_rx_bytes", "ecc_corrected", "ecc_uncorrected"):
        known[name] = growth(samples.column(name)[own])
    return GpuRow(
        gpu=gpu,
        samples=int(chosen.sum()),
        energy_joules=energy.of_gpu(samples, gpu, *span),
        throttled=_throttled(samples.column("throttle_reasons")[chosen]),
        **known,
    )


def _mean(values: Column) -> float | None:
    return float(values.mean()) if values.count() else None


def _largest(values: Column) -> float | None:
    return float(values.max()) if values.count() else None


def _throttled(masks: Column) -> dict[str, float]:
    """Share of the samples in which each reason held the clocks down, the most frequent first."""
    known = masks.compressed()
    seen: Counter[str] = Counter()
    for mask, times in zip(*np.unique(known, return_counts=True), strict=True):
        for reason in throttle.words(int(mask)):
            seen[reason] += int(times)
    return {reason: times / len(known) for reason, times in seen.most_common()}
