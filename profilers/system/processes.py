"""The ranks' own shares of the host: processor time, memory, threads, context switches and storage bytes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from profilers.records.schema import ProcessSample
from profilers.system import procfs
from profilers.system.host_sources import ERRORS, ProcFiles, Reading, Values
from profilers.system.procfs import Status
from profilers.system.sampling_rate import IntervalTimer

#: ``PROCESS_READINGS`` are read this often, and repeated in between: they move slowly, and cost most.
SLOW_SECONDS = 0.5
#: Linux' clock number for the processor time of another process (clock_getcpuclockid(3)): nanoseconds, one call.
_PROCESS_CLOCK = 2
_NO_READING: dict[str, Any] = dict.fromkeys(one.name for one in fields(ProcessSample))


def _psutil_status(process: Any) -> Values:
    switches = process.num_ctx_switches()
    rss, threads = process.memory_info().rss, process.num_threads()
    return Status(rss, threads, switches.voluntary, switches.involuntary)


def _psutil_storage(process: Any) -> Values:
    counters = process.io_counters()
    return counters.read_bytes, counters.write_bytes


#: All but processor time, which is read each time.
PROCESS_READINGS = (
    Reading(
        "status",
        Status._fields,
        lambda files: procfs.process_status(files.read("status")),
        _psutil_status,
    ),
    Reading(
        "storage",
        ("read_bytes", "written_bytes"),
        lambda files: procfs.storage_bytes(files.read("io")),
        _psutil_storage,
    ),
)


class LinuxProcess:
    """One process by its open files in /proc; they keep meaning this process when its number is given again."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._clock = (~pid << 3) | _PROCESS_CLOCK
        self._files = ProcFiles(proc / str(pid))

    def cpu_seconds(self) -> float:
        """User and system time of all its threads."""
        return time.clock_gettime(self._clock)

    def values(self, reading: Reading) -> Values:
        """In the order of the reading's fields; None where this system has none. It may raise one of ``ERRORS``."""
        return reading.from_proc and reading.from_proc(self._files)

    def close(self) -> None:
        """Lets go of its files."""
        self._files.close()


class PsutilProcess:
    """One process by psutil."""

    def __init__(self, pid: int) -> None:
        self._process: Any = psutil.Process(pid)

    def cpu_seconds(self) -> float:
        """User and system time of all its threads."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def values(self, reading: Reading) -> Values:
        """In the order of the reading's fields; None where this system has none. It may raise one of ``ERRORS``."""
        return reading.from_psutil and reading.from_psutil(self._process)

    def close(self) -> None:
        """Nothing to let go of."""


def open_process(pid: int) -> LinuxProcess | PsutilProcess:
    """The cheap way where there is one. psutil.Error where there is no such process and no /proc."""
    return LinuxProcess(pid) if sys.platform == "linux" else PsutilProcess(pid)


class Processes:
    """Reads the processes of a run's ranks. ``opener`` makes a reader of a pid."""

    def __init__(
        self, opener: Callable[[int], Any] = open_process, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._opener, self._wall_clock = opener, wall_clock
        self._ranks: dict[int, tuple[int, Any]] = {}
        self._slow = IntervalTimer(SLOW_SECONDS)
        self._known: dict[int, dict[str, Any]] = {}
        self._missed: dict[str, str] = {}

    @property
    def missing(self) -> list[str]:
        """One line for each reading that failed, with its first error, and for each rank that is gone."""
        return list(self._missed.values())

    def watch(self, pids: Sequence[int]) -> None:
        """From now on, read these processes: rank 0's first. Safe from another thread."""
        self.close()
        self._ranks = {rank: (pid, self._opener(pid)) for rank, pid in enumerate(pids) if pid > 0}

    def records(self) -> list[ProcessSample]:
        """One record a rank; a process that is gone is told once and not read again."""
        now, records = self._wall_clock(), []
        slow = self._slow.due(now)
        for rank, (pid, process) in list(self._ranks.items()):
            errors: dict[str, Exception] = {}
            cpu_seconds = _read("cpu_seconds", process.cpu_seconds, errors)
            if slow or errors or rank not in self._known:
                self._known[rank] = _slow_readings(process, errors)
            if _has_ended(pid, errors):
                self._leave(rank, pid)
                continue
            for name, error in errors.items():
                self._missed.setdefault(name, f"process {name}: {error}")
            readings = {"time_unix": now, "rank": rank, "cpu_seconds": cpu_seconds}
            records.append(ProcessSample(**_NO_READING | self._known[rank] | readings))
        return records

    def _leave(self, rank: int, pid: int) -> None:
        self._missed[f"rank {rank}"] = f"process: rank {rank} (pid {pid}) is gone"
        _, process = self._ranks.pop(rank, (pid, None))
        if process is not None:
            process.close()

    def close(self) -> None:
        """Lets go of all processes."""
        ranks, self._ranks = self._ranks, {}
        for _, process in ranks.values():
            process.close()


def _slow_readings(process: Any, errors: dict[str, Exception]) -> dict[str, Any]:
    readings = dict[str, Any]()
    for reading in PROCESS_READINGS:
        values = _read(reading.name, partial(process.values, reading), errors)
        readings |= dict(zip(reading.fields, values or (None,) * len(reading.fields), strict=True))
    return readings


def _read(name: str, read: Callable[[], Any], errors: dict[str, Exception]) -> Any:
    try:
        return read()
    except ERRORS as error:
        errors[name] = error
        return None


def _has_ended(pid: int, errors: dict[str, Exception]) -> bool:
    """Files of a process that has ended say so, even where its number was given again."""
    ended = ProcessLookupError | psutil.NoSuchProcess
    return any(isinstance(error, ended) for error in errors.values()) or (bool(errors) and not _alive(pid))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
