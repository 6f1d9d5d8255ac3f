"""Memory of one rank: its resident set now and at its peak, what that consists of, and the CUDA allocator's account.

The parts of a resident set come from /proc/self/smaps_rollup and smaps:
https://www.kernel.org/doc/html/latest/filesystems/proc.html
"""

from __future__ import annotations

import ctypes
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch

from profilers.system.procfs import ProcFile, resident_bytes

_MAXRSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


class CudaMemory(NamedTuple):
    """The CUDA allocator's account of one device, in bytes and numbers of retries."""

    allocated: int
    peak: int
    reserved: int
    inactive_split: int
    retries: int


class Reading(NamedTuple):
    """This process's memory now; ``cuda`` is None on a CPU rank."""

    time_unix: float
    rss_bytes: int
    peak_rss_bytes: int
    cuda: CudaMemory | None = None

    @property
    def now_bytes(self) -> int:
        """What counts on this rank's device."""
        return self.rss_bytes if self.cuda is None else self.cuda.allocated

    @property
    def peak_bytes(self) -> int:
        """The most of it so far."""
        return self.peak_rss_bytes if self.cuda is None else self.cuda.peak


class MemoryReader:
    """Reads this process: on a CPU rank one system call and one file that stays open."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._statm: ProcFile | None = ProcFile(Path("/proc/self/statm"))
        self._peak = 0
        self._left_out = False
        #: The kernel's own peak when it counted again; None while it always did.
        self._passed: int | None = None

    def read(self) -> Reading:
        """All of it; without /proc the resident set is that of the peak."""
        highest = peak_rss_bytes()
        rss = self._rss_bytes(highest)
        cuda = cuda_memory(self._device) if self._on_gpu else None
        return Reading(time.time(), rss, self._peak_rss_bytes(rss, highest), cuda)

    def leave_out(self, out: bool) -> None:
        """While ``out`` the resident set's peak stays what it was when last read.

        Afterwards the kernel's peak starts anew. Where it cannot be, the readings count, and the kernel's peak once it
        has passed the old one.
        """
        if self._left_out and not out:
            _start_new_rss_peak()
            self._passed = peak_rss_bytes()
        self._left_out = out

    def forget_peak(self) -> None:
        """After :func:`reset_peak`: the most so far counts from now on."""
        self._peak, self._passed = 0, peak_rss_bytes()

    def _peak_rss_bytes(self, rss: int, highest: int) -> int:
        if self._left_out and self._peak:
            return self._peak
        if self._passed is None:
            self._peak = highest
        else:
            self._peak = max(self._peak, rss, highest if highest > self._passed else 0)
        return self._peak

    def close(self) -> None:
        """Lets go of the file."""
        if self._statm is not None:
            self._statm.close()

    def _rss_bytes(self, peak: int) -> int:
        if self._statm is None:
            return peak
        try:
            return resident_bytes(self._statm.read())
        except OSError:
            self._statm = None
            return peak


def peak_rss_bytes() -> int:
    """Largest resident set of this process since it started or since :func:`reset_peak`."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT_BYTES


def cuda_memory(device: torch.device) -> CudaMemory:
    """What ``torch.cuda.memory_stats`` tells, asked once for all numbers.

    https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html
    """
    stats: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(device)
    allocated = stats["allocated_bytes"]["all"]
    return CudaMemory(
        allocated=int(allocated["current"]),
        peak=int(allocated["peak"]),
        reserved=int(stats["reserved_bytes"]["all"]["current"]),
        inactive_split=int(stats["inactive_split_bytes"]["all"]["current"]),
        retries=int(stats["num_alloc_retries"]),
    )


def reset_peak(device: torch.device) -> None:
    """Start a new peak: warm ranks serve many trials, each with a peak of its own."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    _start_new_rss_peak()


def give_back_freed() -> None:
    """Have the C library hand freed memory back to the system, where it can: else it stays in the resident set.

    https://man7.org/linux/man-pages/man3/malloc_trim.3.html
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _start_new_rss_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


_LARGEST = 20
_KIB = 1024


def summary(proc: Path = Path("/proc/self")) -> dict[str, Any]:
    """Bytes by kind of the whole process, and resident bytes of its largest mappings by name.

    A part is None where the system does not tell it.
    """
    return {"bytes": _read(proc / "smaps_rollup", totals), "mappings": _read(proc / "smaps", largest)}


def totals(rollup: str) -> dict[str, int]:
    """Bytes by the names that the kernel gives: Rss, Pss, Private_Dirty, AnonHugePages, Swap, Locked, ..."""
    rows = (row.split() for row in rollup.splitlines())
    return {row[0].rstrip(":"): int(row[1]) * _KIB for row in rows if len(row) == 3 and row[2] == "kB"}


def largest(smaps: str) -> dict[str, int]:
    """Resident bytes by file; memory without a file is ``anonymous``. The largest first."""
    sizes: Counter[str] = Counter()
    name = ""
    for row in smaps.splitlines():
        first, *rest = row.split(None, 5)
        if "-" in first and not first.endswith(":"):
            name = rest[4] if len(rest) > 4 else "anonymous"
        elif first == "Rss:":
            sizes[name] += int(rest[0]) * _KIB
    return {name: size for name, size in sizes.most_common(_LARGEST) if size}


def _read(path: Path, parse: Any) -> dict[str, int] | None:
    try:
        readings: dict[str, int] = parse(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return readings
