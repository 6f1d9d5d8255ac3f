"""Where the host's counters come from: Linux' own files, or psutil on any other system."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import psutil

from profilers.system import procfs
from profilers.system.procfs import CpuTicks, ProcFile, Traffic

#: What a reading fails with where /proc is hidden, restricted or of another kind.
ERRORS = (psutil.Error, OSError, AttributeError, LookupError, NotImplementedError, RuntimeError, ValueError)

Cpu = tuple[CpuTicks, dict[int, CpuTicks]]


class Source(Protocol):
    """The host's counters. Each function raises one of ``ERRORS`` where it is not available."""

    def cpu(self) -> Cpu:
        """Busy and total time since boot, of all processors together and of each."""

    def memory(self) -> tuple[int, int]:
        """Bytes that are not available, and all."""

    def network(self) -> dict[str, Traffic]:
        """Counters by interface."""

    def disk(self) -> tuple[int, int] | None:
        """Bytes read and written."""

    def load(self) -> float:
        """Mean number of runnable processes over a minute."""

    def close(self) -> None:
        """Lets go of open files."""


class ProcSource:
    """Linux' /proc with its files kept open: a third of what psutil costs."""

    def __init__(self, proc: Path = Path("/proc"), block: Path = Path("/sys/block")) -> None:
        self._stat, self._meminfo = ProcFile(proc / "stat"), ProcFile(proc / "meminfo")
        self._net_dev, self._diskstats = ProcFile(proc / "net" / "dev"), ProcFile(proc / "diskstats")
        self._disks = procfs.physical_disks(block)

    def cpu(self) -> Cpu:
        """From /proc/stat."""
        return procfs.cpu_ticks(self._stat.read())

    def memory(self) -> tuple[int, int]:
        """From /proc/meminfo."""
        return procfs.used_and_total_bytes(self._meminfo.read())

    def network(self) -> dict[str, Traffic]:
        """From /proc/net/dev, of the network namespace of this process."""
        return procfs.interfaces(self._net_dev.read())

    def disk(self) -> tuple[int, int] | None:
        """From /proc/diskstats, of the disks that were there when this object was made."""
        return procfs.disk_bytes(self._diskstats.read(), self._disks)

    def load(self) -> float:
        """One system call."""
        return os.getloadavg()[0]

    def close(self) -> None:
        """Lets go of the files."""
        for file in (self._stat, self._meminfo, self._net_dev, self._diskstats):
            file.close()


class PsutilSource:
    """psutil; ``module`` stands in for it in tests."""

    def __init__(self, module: Any = psutil) -> None:
        self._psutil = module

    def cpu(self) -> Cpu:
        """Guests count within user time already; waiting for disks is idle."""
        times = self._psutil.cpu_times(percpu=True)
        cores = {core: _ticks(of_core) for core, of_core in enumerate(times)}
        busy, total = (sum(ticks[part] for ticks in cores.values()) for part in (0, 1))
        return CpuTicks(busy, total), cores

    def memory(self) -> tuple[int, int]:
        """Of the machine, not of a container."""
        memory = self._psutil.virtual_memory()
        return memory.total - memory.available, memory.total

    def network(self) -> dict[str, Traffic]:
        """Counters by interface."""
        found = self._psutil.net_io_counters(pernic=True)
        return {
            name: Traffic(row.bytes_sent, row.bytes_recv, row.packets_sent, row.packets_recv)
            for name, row in found.items()
        }

    def disk(self) -> tuple[int, int] | None:
        """All disks together."""
        disk = self._psutil.disk_io_counters()
        return None if disk is None else (disk.read_bytes, disk.write_bytes)

    def load(self) -> float:
        """The first of three means."""
        return float(self._psutil.getloadavg()[0])

    def close(self) -> None:
        """Nothing to let go of."""


def _ticks(times: Any) -> CpuTicks:
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return CpuTicks(total - times.idle - getattr(times, "iowait", 0.0), total)


def source() -> Source:
    """/proc where there is one."""
    return ProcSource() if Path("/proc/stat").exists() else PsutilSource()
