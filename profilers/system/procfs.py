"""Linux' /proc, read cheaply: files and folders stay open and are read again from their start; what is in them, parsed.
Pure.

Layouts: https://www.kernel.org/doc/html/latest/filesystems/proc.html
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_READ_BYTES = 1 << 12
#: Files made of lines come in pages of 4 KiB: one that is less than half full is the last.
_PAGE_HALF_BYTES = 2048
_SECTOR_BYTES = 512
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_IDLE, _IOWAIT, _GUEST = 3, 4, 8


class ProcFile:
    """One file that is kept open; a read is one system call where it fits into half a page."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._read_bytes = _READ_BYTES

    def read(self) -> bytes:
        """The file as it is now. OSError if it cannot be opened, or no longer be read."""
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        piece = text = os.pread(self._descriptor, self._read_bytes, 0)
        while len(piece) > _PAGE_HALF_BYTES:
            piece = os.pread(self._descriptor, self._read_bytes, len(text))
            text += piece
        self._read_bytes = max(self._read_bytes, 2 * len(text))
        return text

    def close(self) -> None:
        """Lets go of the file; a later read opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class ProcFolder:
    """One folder that is kept open, as a :class:`ProcFile` is: in the place of a process that has ended, a later one
    with the same number would be listed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def names(self) -> list[str]:
        """What stands in it now, in no order. OSError if it cannot be opened, or no longer be read."""
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with os.scandir(self._descriptor) as entries:
            return [entry.name for entry in entries]

    def close(self) -> None:
        """Lets go of the folder; a later call opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class CpuTicks(NamedTuple):
    """Busy and total time of one or all processors since boot, in any one unit."""

    busy: float
    total: float


class InterfaceCounters(NamedTuple):
    """Counters of one network interface."""

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int


class Status(NamedTuple):
    """What /proc/PID/status says; switches are those of the main thread."""

    rss_bytes: int
    threads: int
    voluntary_switches: int
    involuntary_switches: int


def cpu_ticks(stat: bytes) -> tuple[CpuTicks, dict[int, CpuTicks]]:
    """/proc/stat: all processors together, and each online one by its number. ValueError if it does not tell."""
    cores: dict[int, CpuTicks] = {}
    all_cores: CpuTicks | None = None
    for row in stat.split(b"\n"):
        if not row.startswith(b"cpu"):
            break
        name, *values = row.split(None, _GUEST + 1)
        times = [int(value) for value in values[:_GUEST]]  # guests count within user time already
        total = sum(times)
        ticks = CpuTicks(total - times[_IDLE] - times[_IOWAIT], total)
        if name == b"cpu":
            all_cores = ticks
        else:
            cores[int(name[3:])] = ticks
    if all_cores is None:
        raise ValueError("no processor in it")
    return all_cores, cores


def used_and_total_bytes(meminfo: bytes) -> tuple[int, int]:
    """/proc/meminfo: memory that is not available, and all of it. ValueError if it does not tell."""
    head = b"\n" + meminfo[:_PAGE_HALF_BYTES]
    total, available = number_after(head, b"\nMemTotal:"), number_after(head, b"\nMemAvailable:")
    return (total - available) * 1024, total * 1024


def interfaces(net_dev: bytes) -> dict[str, InterfaceCounters]:
    """/proc/net/dev: counters by interface."""
    traffic = {}
    for row in net_dev.split(b"\n")[2:]:
        name, colon, rest = row.rpartition(b":")
        if colon:
            values = rest.split(None, 10)
            traffic[name.strip().decode()] = InterfaceCounters(
                int(values[8]), int(values[0]), int(values[9]), int(values[1])
            )
    return traffic


def disk_bytes(diskstats: bytes, disks: frozenset[bytes]) -> tuple[int, int] | None:
    """/proc/diskstats: bytes read from and written to ``disks``; None without any of them."""
    read = written = disk_count = 0
    for row in diskstats.split(b"\n"):
        values = row.split(None, 10)
        if len(values) > 9 and values[2] in disks:
            read, written, disk_count = read + int(values[5]), written + int(values[9]), disk_count + 1
    return (read * _SECTOR_BYTES, written * _SECTOR_BYTES) if disk_count else None


def process_status(status: bytes) -> Status:
    """/proc/PID/status. ProcessLookupError for a process that has ended and not been reaped."""
    if b"\nState:\tZ" in status:
        raise ProcessLookupError("it has ended")
    return Status(
        number_after(status, b"\nVmRSS:") * 1024,
        number_after(status, b"\nThreads:"),
        number_after(status, b"\nvoluntary_ctxt_switches:"),
        number_after(status, b"\nnonvoluntary_ctxt_switches:"),
    )


def storage_bytes(io: bytes) -> tuple[int, int]:
    """/proc/PID/io: bytes that the process caused to be read from and written to storage."""
    return number_after(io, b"\nread_bytes:"), number_after(io, b"\nwrite_bytes:")


def number_after(text: bytes, key: bytes) -> int:
    """The first number after a key, up to the end of the line. ValueError without that key, or if it is no integer."""
    return int(_word_after(text, key))


def decimal_after(text: bytes, key: bytes) -> float:
    """The same of a number with decimals, such as the pressure that /proc/pressure/cpu has."""
    return float(_word_after(text, key))


def _word_after(text: bytes, key: bytes) -> bytes:
    place = text.find(key)
    if place < 0:
        raise ValueError(f"no {key.decode().strip()} in it")
    start = place + len(key)
    return text[start : text.index(b"\n", start)].split()[0]


def resident_bytes(statm: bytes) -> int:
    """/proc/PID/statm: the resident set."""
    return int(statm.split(None, 2)[1]) * _PAGE_BYTES


def physical_disks(block: Path = Path("/sys/block")) -> frozenset[bytes]:
    """Disks with hardware below them: loop, RAM, striped and mapped devices would count the same bytes twice.

    All block devices where none says that it has any.
    """
    try:
        names = [entry.name for entry in block.iterdir()]
    except OSError:
        return frozenset()
    real = [name for name in names if (block / name / "device").exists()]
    return frozenset(name.replace("!", "/").encode() for name in real or names)
