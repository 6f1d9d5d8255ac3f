"""Counters of a lab host's own interfaces: around the measured steps with all ranks at rest, and in between."""

from __future__ import annotations

import time
from pathlib import Path

import torch.distributed as dist

from engine.messages import Seat
from profilers import procfs
from profilers.collectives import unrecorded
from profilers.records import NetworkSample
from profilers.writer import RecordWriter

_INTERVAL_SECONDS = 0.1


class InterfaceLog:
    """Written by one rank of each host; outside the lab nothing is read, since others use the interfaces, too."""

    def __init__(self, seat: Seat | None, writer: RecordWriter) -> None:
        self._seat, self._writer = seat, writer
        self._counters = procfs.ProcFile(Path("/proc/self/net/dev"))
        self._last = 0.0

    def at_rest(self) -> None:
        """Read while no rank has anything to send; all ranks call it between the same two steps."""
        if self._seat is not None:
            with unrecorded():
                dist.barrier()
                self.read()
                dist.barrier()

    def now_and_then(self) -> None:
        """Read if the last time is a while ago."""
        if time.monotonic() - self._last >= _INTERVAL_SECONDS:
            self.read()

    def read(self) -> None:
        """Write what the counters say now."""
        if self._seat is None or not self._seat.reads:
            return
        self._last, now = time.monotonic(), time.time()
        found = procfs.interfaces(self._counters.read())
        chosen = [(name, found[name]) for name in self._seat.interfaces if name in found]
        self._writer.write_many([NetworkSample(now, name, *traffic) for name, traffic in chosen])

    def close(self) -> None:
        """A last reading."""
        self.read()
        self._counters.close()
