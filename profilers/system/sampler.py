"""A thread that samples the host, its ranks' processes and the GPUs at a steady interval: beside the launcher, or in a
process of its own on each host where another one started the ranks.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

from profilers.gpu import detection, rank_gpus
from profilers.gpu.library import GpuLibrary
from profilers.records.writer import RecordWriter
from profilers.system.host import Host
from profilers.system.processes import Processes
from profilers.system.sampling_rate import IntervalTimer, Pace

#: How long ``stop`` waits for a sample that is being taken.
_STOP_SECONDS = 5.0
#: How often it is looked whether a reading is missing that was not told yet.
_TELLING_SECONDS = 1.0
#: Readings of GPUs may cost this share of one core: a driver is slower than the kernel's own counters.
_GPU_BUDGET = 0.01
#: The event that says why no GPU is read; its name is from when NVML was the only library.
NO_GPUS = "nvml_unavailable"


class Schedule:
    """Ticks at ``start + k * interval``; those that a slow sample ran over are skipped. All in seconds."""

    def __init__(self, interval_seconds: float) -> None:
        if not interval_seconds > 0:
            raise ValueError(f"interval_seconds is {interval_seconds}; it must be above 0")
        self._interval = interval_seconds
        self._planned = 0.0
        self.skipped = 0

    def start(self, now: float) -> None:
        """Makes ``now`` the first tick."""
        self._planned = now

    def seconds_to_next(self, now: float) -> float:
        """Moves on to the next tick after ``now`` and says how far away it is."""
        self._planned += self._interval
        if now > self._planned:
            missed = math.ceil((now - self._planned) / self._interval)
            self.skipped += missed
            self._planned += missed * self._interval
        return self._planned - now


class Sampler:
    """``with Sampler(writer, 0.1):`` samples at once, then each interval, and a last time at the end.

    ``writer`` is that of its process; it must outlive the sampler. ``clock`` is monotonic, ``wait`` waits for
    some seconds or for the end of the sampling, and says whether that came. A part that is slow to read is read less
    often (``profilers.system.sampling_rate``).
    """

    def __init__(
        self,
        writer: RecordWriter,
        interval_seconds: float = 0.1,
        host: Host | None = None,
        library: GpuLibrary | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
        processes: Processes | None = None,
    ) -> None:
        self._writer = writer
        self._host = host or Host()
        self._library = library
        self._ranks: frozenset[int] = frozenset()
        self._processes = processes or Processes()
        self._clock = clock
        # Held until the end: waiting for it is one call, cheaper than an event's ten times a second.
        self._going = threading.Lock()
        self._going.acquire()
        self._wait = wait or (lambda seconds: self._going.acquire(timeout=seconds))
        self._schedule = Schedule(interval_seconds)
        self._paces = {
            "host": Pace(interval_seconds),
            "process": Pace(interval_seconds),
            "gpu": Pace(interval_seconds, _GPU_BUDGET),
        }
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._told: set[str] = set()
        self._telling = IntervalTimer(_TELLING_SECONDS)
        #: Processor time that the sampling itself took.
        self.cpu_seconds = 0.0

    @property
    def skipped(self) -> int:
        """Ticks left out because the sample before took longer than the interval."""
        return self._schedule.skipped

    def watch(self, pids: Sequence[int]) -> None:
        """From now on, sample the processes of these ranks too, rank 0's first."""
        self._processes.watch(pids)
        self._ranks = frozenset(pids)

    def start(self) -> None:
        """Begins to sample. RuntimeError if called twice."""
        self._thread.start()

    def stop(self) -> None:
        """Takes a last sample and ends; does nothing if it never began, or has ended."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # released already
                self._going.release()
            self._thread.join(_STOP_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        library = self._library or detection.open_library()
        parts = self._parts(library)
        self._schedule.start(self._clock())
        stopping = False
        while True:
            self._sample(parts, library, last=stopping)
            if stopping:
                break
            stopping = self._wait(self._schedule.seconds_to_next(self._clock()))
        self._report()
        library.close()

    def _parts(self, library: GpuLibrary) -> list[tuple[Pace, Callable[[], None]]]:
        paces = self._paces
        parts = [(paces["host"], self._host_records), (paces["process"], self._process_records)]
        count = self._tell_gpus(library)
        return [*parts, (paces["gpu"], partial(self._gpu_records, library, count))] if count else parts

    def _tell_gpus(self, library: GpuLibrary) -> int:
        """How many there are."""
        if library.reason is not None:
            self._writer.event(NO_GPUS, reason=library.reason)
        identities = [library.identity(gpu).as_dict() for gpu in range(library.device_count)]
        if identities:
            driver = {"vendor": library.vendor, "library": library.library, "links": library.links}
            self._writer.event(rank_gpus.EVENT, host=socket.gethostname(), gpus=identities, **driver)
        return len(identities)

    def _sample(self, parts: list[tuple[Pace, Callable[[], None]]], library: GpuLibrary, last: bool) -> None:
        for pace, reading in parts:
            if pace.due() or last:
                pace.read(reading)
        if last:
            self._writer.write_many(self._host.last())
        if last or self._telling.due(self._clock()):
            self._tell_missing(library)
        self.cpu_seconds = time.thread_time()

    def _host_records(self) -> None:
        for records in self._host.records():
            self._writer.write_many(records)

    def _process_records(self) -> None:
        self._writer.write_many(self._processes.records())

    def _gpu_records(self, library: GpuLibrary, count: int) -> None:
        library.ranks = self._ranks
        for gpu in range(count):
            self._writer.write(library.sample(gpu))
        for kind, data in library.error_transitions():
            self._writer.event(kind, **data)

    def _tell_missing(self, library: GpuLibrary) -> None:
        """Each reading that is not available, once."""
        missing = [*self._host.missing, *self._processes.missing, *library.missing]
        new = [line for line in missing if line not in self._told]
        if new:
            self._told.update(new)
            self._writer.event("readings_missing", functions=new)

    def _report(self) -> None:
        parts = {
            part: {"readings": pace.readings, "cpu_seconds": pace.cpu_seconds}
            for part, pace in self._paces.items()
        }
        self._writer.event("sampler", cpu_seconds=self.cpu_seconds, skipped=self.skipped, parts=parts)
        self._host.close()
        self._processes.close()
