"""Where the host's counters come from: Linux' own files, or psutil on any other system."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psutil

from profilers.system import procfs
from profilers.system.procfs import CpuTicks, InterfaceCounters, ProcFile, ProcFolder

#: What a reading fails with where /proc is hidden, restricted or of another kind.
ERRORS = (psutil.Error, OSError, AttributeError, LookupError, NotImplementedError, RuntimeError, ValueError)

Cpu = tuple[CpuTicks, dict[int, CpuTicks]]
#: Values of a reading in the order of its fields; None where the host has nothing of the kind.
Values = Sequence[float | int | None] | None


class ProcFiles:
    """Linux' /proc, or the folder of one process there, with what was read of it kept open: a third of psutil's cost.
    ``disks`` are those of the host, as far as whoever made this object asked for them.
    """

    def __init__(self, folder: Path, disks: frozenset[bytes] = frozenset()) -> None:
        self._folder = folder
        self._files: dict[str, ProcFile] = {}
        self._folders: dict[str, ProcFolder] = {}
        self.disks = disks

    def read(self, name: str) -> bytes:
        """A file of the folder as it is now. OSError if it cannot be read."""
        if name not in self._files:
            self._files[name] = ProcFile(self._folder / name)
        return self._files[name].read()

    def names(self, name: str) -> list[str]:
        """What a folder in it holds now, as ``fd`` a process's open descriptors. OSError if it cannot be listed."""
        if name not in self._folders:
            self._folders[name] = ProcFolder(self._folder / name)
        return self._folders[name].names()

    def close(self) -> None:
        """Lets go of all that it opened."""
        opened: list[ProcFile | ProcFolder] = [*self._files.values(), *self._folders.values()]
        for one in opened:
            one.close()


class Reading(NamedTuple):
    """What is read twice a second: the ``fields`` of ``HostSample`` that it fills, and their values from /proc or, on
    any other system, from psutil; None where one of the two has no such reading. Both functions raise one of ``ERRORS``
    where it is not available, and people are told that ``name`` is missing. Of a rank's process the fields are those of
    ``ProcessSample``, and the functions are given the files of /proc/PID, or a ``psutil.Process``.
    """

    name: str
    fields: tuple[str, ...]
    from_proc: Callable[[ProcFiles], Values] | None = None
    from_psutil: Callable[[Any], Values] | None = None


def _psutil_memory(module: Any) -> Values:
    memory = module.virtual_memory()
    return memory.total - memory.available, memory.total


def _psutil_disks(module: Any) -> Values:
    disk = module.disk_io_counters()
    return None if disk is None else (disk.read_bytes, disk.write_bytes)


#: Readings that move slowly. Processors and network interfaces have records of their own, and are read each time.
READINGS = (
    Reading(
        "memory",
        ("memory_used_bytes", "memory_total_bytes"),
        lambda files: procfs.used_and_total_bytes(files.read("meminfo")),
        _psutil_memory,
    ),
    Reading(
        "disk",
        ("disk_read_bytes", "disk_written_bytes"),
        lambda files: procfs.disk_bytes(files.read("diskstats"), files.disks),
        _psutil_disks,
    ),
    Reading(
        "load",
        ("load_1_minute",),
        lambda _: os.getloadavg()[:1],
        lambda module: module.getloadavg()[:1],
    ),
)


class Source(Protocol):
    """The host's counters. Each function raises one of ``ERRORS`` where it is not available."""

    def cpu(self) -> Cpu:
        """Busy and total time since boot, of all processors together and of each."""

    def network(self) -> dict[str, InterfaceCounters]:
        """Counters by interface."""

    def values(self, reading: Reading) -> Values:
        """What a reading has now."""

    def close(self) -> None:
        """Lets go of open files."""


class ProcSource:
    """Linux' /proc."""

    def __init__(self, proc: Path = Path("/proc"), block: Path = Path("/sys/block")) -> None:
        self._files = ProcFiles(proc, procfs.physical_disks(block))

    def cpu(self) -> Cpu:
        """From /proc/stat."""
        return procfs.cpu_ticks(self._files.read("stat"))

    def network(self) -> dict[str, InterfaceCounters]:
        """From /proc/net/dev, of the network namespace of this process."""
        return procfs.interfaces(self._files.read("net/dev"))

    def values(self, reading: Reading) -> Values:
        """In the order of the reading's fields; None where this system has none. It may raise one of ``ERRORS``."""
        return reading.from_proc and reading.from_proc(self._files)

    def close(self) -> None:
        """Lets go of the files."""
        self._files.close()


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

    def network(self) -> dict[str, InterfaceCounters]:
        """Counters by interface."""
        counters = self._psutil.net_io_counters(pernic=True)
        return {
            name: InterfaceCounters(row.bytes_sent, row.bytes_recv, row.packets_sent, row.packets_recv)
            for name, row in counters.items()
        }

    def values(self, reading: Reading) -> Values:
        """In the order of the reading's fields; None where this system has none. It may raise one of ``ERRORS``."""
        return reading.from_psutil and reading.from_psutil(self._psutil)

    def close(self) -> None:
        """Nothing to let go of."""


def _ticks(times: Any) -> CpuTicks:
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return CpuTicks(total - times.idle - getattr(times, "iowait", 0.0), total)


def source() -> Source:
    """/proc where there is one."""
    return ProcSource() if Path("/proc/stat").exists() else PsutilSource()
