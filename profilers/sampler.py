"""A thread beside the launcher that samples the host and its GPUs at a steady interval."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Self

from profilers.host import Host
from profilers.nvml import Nvml
from profilers.writer import RecordWriter

#: How long ``stop`` waits for a sample that is being taken.
_STOP_SECONDS = 5.0


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
    """``with Sampler(writer, 0.5):`` samples at once, then each interval, and a last time at the end.

    ``writer`` is that of the launcher; it must outlive the sampler. ``clock`` is monotonic, ``wait`` waits for
    some seconds or for the end of the sampling, and says whether that came.
    """

    def __init__(
        self,
        writer: RecordWriter,
        interval_seconds: float = 0.5,
        host: Host | None = None,
        nvml: Nvml | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._writer = writer
        self._host = host or Host()
        self._nvml = nvml or Nvml()
        self._clock = clock
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self._schedule = Schedule(interval_seconds)
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        #: Processor time that the sampling itself took.
        self.cpu_seconds = 0.0

    @property
    def skipped(self) -> int:
        """Ticks left out because the sample before took longer than the interval."""
        return self._schedule.skipped

    def start(self) -> None:
        """Begins to sample. RuntimeError if called twice."""
        self._thread.start()

    def stop(self) -> None:
        """Takes a last sample and ends; does nothing if it never began."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        gpus = self._gpus()
        self._schedule.start(self._clock())
        stopping = False
        while True:
            self._sample(gpus)
            if stopping:
                break
            stopping = self._wait(self._schedule.seconds_to_next(self._clock()))
        self._report()

    def _gpus(self) -> range:
        if self._nvml.reason is not None:
            self._writer.event("nvml_unavailable", reason=self._nvml.reason)
        return range(self._nvml.device_count)

    def _sample(self, gpus: range) -> None:
        self._writer.write(self._host.sample())
        for gpu in gpus:
            self._writer.write(self._nvml.sample(gpu))
        self.cpu_seconds = time.thread_time()

    def _report(self) -> None:
        missing = [*self._host.missing, *self._nvml.missing]
        if missing:
            self._writer.event("readings_missing", functions=missing)
        self._writer.event("sampler", cpu_seconds=self.cpu_seconds, skipped=self.skipped)
        self._nvml.close()
