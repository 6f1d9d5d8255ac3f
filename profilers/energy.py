"""GPU energy within a span of time, from the counters that NVML samples."""

from __future__ import annotations

import numpy as np

from profilers.table import Table


def joules(gpu_samples: Table, start_unix: float, end_unix: float) -> float | None:
    """Energy of all sampled GPUs between two wall-clock times; None if that of one of them is not known.

    The counter is read at intervals: the mean power between the samples within the span stands for all of it.
    """
    watts = [_mean_watts(gpu_samples, gpu, start_unix, end_unix) for gpu in gpus(gpu_samples)]
    known = [power for power in watts if power is not None]
    if not known or len(known) < len(watts):
        return None
    return sum(known) * (end_unix - start_unix)


def of_gpu(gpu_samples: Table, gpu: int, start_unix: float, end_unix: float) -> float | None:
    """As ``joules``, of one GPU."""
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
