"""Memory of one rank: resident set now and at its peak, and the CUDA allocator's own account."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import torch

from profilers.records import MemorySample

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MAXRSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def rss_bytes() -> int:
    """Resident set of this process, from /proc where there is one."""
    try:
        with Path("/proc/self/statm").open(encoding="ascii") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return peak_rss_bytes()


def peak_rss_bytes() -> int:
    """Largest resident set of this process since it started or since :func:`reset_peak`."""
    try:
        with Path("/proc/self/status").open(encoding="ascii") as status:
            line = next((row for row in status if row.startswith("VmHWM")), None)
        if line is not None:
            return int(line.split()[1]) * 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT_BYTES
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT_BYTES


def reset_peak(device: torch.device) -> None:
    """Start a new peak: warm ranks serve many trials, each with a peak of its own."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def sample(step: int, device: torch.device) -> MemorySample:
    """A reading of this rank's memory; the CUDA fields are None on a CPU rank."""
    on_gpu = device.type == "cuda"
    return MemorySample(
        step=step,
        time_unix=time.time(),
        rss_bytes=rss_bytes(),
        peak_rss_bytes=peak_rss_bytes(),
        cuda_allocated_bytes=torch.cuda.memory_allocated(device) if on_gpu else None,
        cuda_peak_bytes=torch.cuda.max_memory_allocated(device) if on_gpu else None,
        cuda_reserved_bytes=torch.cuda.memory_reserved(device) if on_gpu else None,
    )
