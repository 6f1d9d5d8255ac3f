"""Counters of a lab's interfaces: around the measured steps with all ranks at rest, and in between."""

from __future__ import annotations

import time
from pathlib import Path

import torch.distributed as dist

from engine import netns
from engine.messages import Counted, Seat
from profilers.collectives.recorder import unrecorded
from profilers.records.schema import NetworkSample
from profilers.records.writer import RecordWriter
from profilers.system import procfs
from profilers.system.procfs import ProcFile

_INTERVAL_SECONDS = 0.1
_HERE = Path("/proc/thread-self/net/dev")


class InterfaceLog:
    """Written by one rank of each host, its island's link by one of the island; outside the lab nothing is read, since
    others use the interfaces, too. What each is held to and who uses it is told once, as the event ``interfaces``.
    """

    def __init__(self, seat: Seat | None, writer: RecordWriter) -> None:
        self._inside, self._writer = seat is not None, writer
        self._sources = [] if seat is None else [(one, _opened(one)) for one in seat.counted]
        self._last = 0.0
        if self._sources:
            told = {one.name: {"rate_mbit": one.rate_mbit, "ranks": one.ranks} for one, _ in self._sources}
            writer.event("interfaces", interfaces=told)

    def at_rest(self) -> None:
        """Read while no rank has anything to send; all ranks call it between the same two steps."""
        if self._inside:
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
        self._last, now = time.monotonic(), time.time()
        samples = []
        for one, file in self._sources:
            name = one.name if one.elsewhere is None else one.elsewhere[1]
            found = procfs.interfaces(file.read())
            samples += [NetworkSample(now, one.name, *found[name])] if name in found else []
        if samples:
            self._writer.write_many(samples)

    def close(self) -> None:
        """A last reading."""
        self.read()
        for _, file in self._sources:
            file.close()


def _opened(one: Counted) -> ProcFile:
    """Counters of the namespace that the interface is in; a file that was opened there tells of there ever after."""
    file = ProcFile(_HERE)
    if one.elsewhere is None:
        file.read()
    else:
        netns.inside(one.elsewhere[0], file.read)
    return file
