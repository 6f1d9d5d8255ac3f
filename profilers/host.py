"""psutil -> HostSample: processor, memory, network and disk of the host; what cannot be read is None."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

from profilers.records import HostSample

_LOOPBACK = ("lo", "lo0")
#: What psutil's readings fail with where /proc is hidden, restricted or of another kind.
_ERRORS = (psutil.Error, OSError, AttributeError, KeyError, NotImplementedError, RuntimeError, ValueError)


class Host:
    """Reads the host. ``module`` stands in for psutil in tests; ``wall_clock`` gives unix seconds."""

    def __init__(self, module: Any = psutil, wall_clock: Callable[[], float] = time.time) -> None:
        self._psutil = module
        self._wall_clock = wall_clock
        self._missed: dict[str, str] = {}
        self._cpu_before = self._cpu_seconds()

    @property
    def missing(self) -> list[str]:
        """One line for each psutil function that failed, with its first error."""
        return list(self._missed.values())

    def sample(self) -> HostSample:
        """All readings; ``cpu_fraction`` is that since the sample before, or since this object was made."""
        memory = self._read("virtual_memory")
        disk = self._read("disk_io_counters")
        load = self._read("getloadavg")
        interfaces = self._read("net_io_counters", pernic=True)
        return HostSample(
            time_unix=self._wall_clock(),
            cpu_fraction=self._cpu_fraction(),
            memory_used_bytes=None if memory is None else memory.total - memory.available,
            memory_total_bytes=None if memory is None else memory.total,
            network_sent_bytes=_sum(interfaces, "bytes_sent", loopback=False),
            network_received_bytes=_sum(interfaces, "bytes_recv", loopback=False),
            loopback_sent_bytes=_sum(interfaces, "bytes_sent", loopback=True),
            disk_read_bytes=None if disk is None else disk.read_bytes,
            disk_written_bytes=None if disk is None else disk.write_bytes,
            load_1_minute=None if load is None else load[0],
        )

    def _cpu_fraction(self) -> float | None:
        before, now = self._cpu_before, self._cpu_seconds()
        self._cpu_before = now
        if before is None or now is None or now[1] <= before[1]:
            return None
        return min(1.0, max(0.0, (now[0] - before[0]) / (now[1] - before[1])))

    def _cpu_seconds(self) -> tuple[float, float] | None:
        """Busy and total seconds of all processors since boot; guests count within user time already."""
        times = self._read("cpu_times")
        if times is None:
            return None
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return total - times.idle - getattr(times, "iowait", 0.0), total

    def _read(self, function: str, **arguments: Any) -> Any:
        try:
            return getattr(self._psutil, function)(**arguments)
        except _ERRORS as error:
            self._missed.setdefault(function, f"{function}: {error}")
            return None


def _sum(interfaces: Any, counter: str, *, loopback: bool) -> int | None:
    if interfaces is None:
        return None
    chosen = [counts for name, counts in interfaces.items() if (name in _LOOPBACK) == loopback]
    return sum(getattr(counts, counter) for counts in chosen) if chosen else None
