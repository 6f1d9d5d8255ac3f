"""Asks, outside the measured steps, how far each host's clock is from that of rank 0's host."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from engine import on_host
from profilers.collectives.recorder import unrecorded
from profilers.records.writer import RecordWriter
from profilers.steps.clock_offset import Exchange, Offset, estimate

#: Messages to each host; the one that was quickest counts.
ROUNDS = 24
_BOOT = Path("/proc/sys/kernel/random/boot_id")

Now = Callable[[], float]


def boot() -> str:
    """Names the running kernel, whose clock all its processes share; in containers and in the lab, too."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return f"{time.time_ns()}-{id(_BOOT)}"  # not known: a clock of its own


class HostClocks:
    """One rank's part; all ranks of the default group make the same calls.

    One rank of each host exchanges messages with rank 0, host after host, and tells the others. ``kernel`` and ``now``
    are this rank's host and its clock.
    """

    def __init__(self, device: torch.device, kernel: str | None = None, now: Now = time.time) -> None:
        self._device, self._now = device, now
        self._rank, size = dist.get_rank(), dist.get_world_size()
        self._kernels: list[str] = [kernel or boot()] * size
        if size > 1:
            with unrecorded():
                dist.all_gather_object(self._kernels, kernel or boot())

    @property
    def several(self) -> bool:
        """Whether ranks have more than one clock."""
        return len(set(self._kernels)) > 1

    def measure(self) -> Offset:
        """This rank's clock against rank 0's."""
        found: list[Offset | None] = [None] * len(self._kernels)
        with unrecorded():
            mine = self._exchange()
            if self.several:
                dist.all_gather_object(found, mine)
        first = self._kernels.index(self._kernels[self._rank])
        return found[first] or Offset(self._now(), 0.0, 0.0)

    def _exchange(self) -> Offset | None:
        """What this rank found out, if it speaks for its host."""
        first_ranks = [self._kernels.index(kernel) for kernel in dict.fromkeys(self._kernels)]
        mine = None
        for asker in first_ranks[1:]:
            if self._rank == asker:
                mine = estimate([self._ask() for _ in range(ROUNDS)])
            elif self._rank == 0:
                for _ in range(ROUNDS):
                    self._answer(asker)
        return mine

    def _ask(self) -> Exchange:
        asked = self._now()
        dist.send(self._tensor(0.0, 0.0), 0)
        got, answered = self._receive(0)
        return Exchange(asked, got, answered, self._now())

    def _answer(self, asker: int) -> None:
        self._receive(asker)
        got = self._now()
        dist.send(self._tensor(got, self._now()), asker)

    def _receive(self, source: int) -> list[float]:
        into = self._tensor(0.0, 0.0)
        dist.recv(into, source)
        values: list[float] = on_host.numbers(into)
        return values

    def _tensor(self, *values: float) -> Any:
        return torch.tensor(values, dtype=torch.float64, device=self._device)


def tell(clocks: HostClocks, writer: RecordWriter) -> None:
    """Measure, and write what came out."""
    writer.event("clock", **clocks.measure()._asdict())
