"""GPU energy within a span of time, from the counters that the driver gives."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from profilers.rank_gpus import RankGpus
from profilers.table import Table
from profilers.tail import RunRecords


def joules(readings: Iterable[tuple[Table, int]], start_unix: float, end_unix: float) -> float | None:
    """Energy of some GPUs between two wall-clock times, each by its number in a table of readings; None if that of one
    of them is not known, or without any.

    The counter is read at intervals: the mean power between the samples within the span stands for all of it.
    """
    found = [of_gpu(table, gpu, start_unix, end_unix) for table, gpu in readings]
    known = [energy for energy in found if energy is not None]
    return sum(known) if known and len(known) == len(found) else None


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


def of_gpu(gpu_samples: Table, gpu: int, start_unix: float, end_unix: float) -> float | None:
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
