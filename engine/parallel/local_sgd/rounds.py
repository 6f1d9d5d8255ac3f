"""What all outer loops have in common: rounds of steps, and what a checkpoint has to keep of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine.comm.context import RankContext
from engine.parallel.local_sgd.flat_vector import Part
from engine.parallel.local_sgd.replica_comm import Background, Waits

#: The kind of the event in which a rank tells of an average that it took over.
EVENT = "outer"


class Vector(NamedTuple):
    """State of an outer loop: ``values`` hold ``parts``, the first of which begins at ``origin`` of the flat vector.

    What is not ``shared`` differs from replica to replica.
    """

    name: str
    values: Tensor
    parts: list[Part]
    origin: int = 0
    shared: bool = True


@dataclass(frozen=True, slots=True)
class Taken:
    """An average that replicas took over: of which round, in which one, and how long ago it was sent."""

    round: int
    average_of: int
    delay_steps: int
    waits: Waits
    fragment: int = 0


class OuterLoop(Protocol):
    """What an optimizer's steps are followed by. Every rank calls the same methods at the same steps."""

    def step(self) -> None:
        """After an inner step: send, or take over what has come, if it is time."""

    def settle(self) -> None:
        """Wait for what is under way; then state holds everything that the next steps need."""

    def finish(self) -> None:
        """After the last step: all replicas get one model, the one that is validated."""

    def restored(self, anew: bool) -> None:
        """After new values were put into weights and state; ``anew``: into weights alone, the same for all replicas."""

    def vectors(self) -> Iterator[Vector]:
        """State by its place in the model."""

    def counters(self) -> dict[str, Tensor]:
        """The rest of the state, the same on all ranks, or under a name of this rank's own."""


class Rounds:
    """Counts: ``round`` is the running one, ``since`` the inner steps that it has behind it."""

    def __init__(self, rank: RankContext, bring: Callable[[], None]) -> None:
        self._rank, self.bring = rank, bring
        self.background = Background(rank.timer)
        self._untold: deque[tuple[int, Taken]] = deque()
        self.round, self.since = (torch.zeros((), dtype=torch.int64) for _ in range(2))

    @property
    def period(self) -> int:
        """Inner steps of a round, which an order may change."""
        return self._rank.config.outer.period

    def is_over(self) -> bool:
        """Count one inner step; whether it was the round's last one."""
        self.tell_due()
        self.background.progress()
        self.since += 1
        return int(self.since) >= self.period

    def next_round(self) -> None:
        """The next inner step is a new round's first one."""
        self.round += 1
        self.since.zero_()

    def tell(self, taken: Taken) -> None:
        """Record an average that was taken over, once the device has waited for it."""
        self._untold.append((self._rank.timer.step, taken))
        self.tell_due()

    def tell_due(self, wait: bool = False) -> None:
        """Record what the device is done with; ``wait`` for all of it after the last step."""
        clock = self._rank.timer.clock
        while self._untold:
            step, taken = self._untold[0]
            ends = [end for _, end in taken.waits[-1:]]
            if not all(map(clock.ready, ends)):
                if not wait:
                    return
                clock.wait(*ends)
            self._untold.popleft()
            self._write(step, taken, sum((clock.seconds(*marks) for marks in taken.waits), 0.0))

    def _write(self, step: int, taken: Taken, wait_seconds: float) -> None:
        self._rank.writer.event(
            EVENT,
            step=step,
            round=taken.round,
            average_of=taken.average_of,
            staleness=taken.round - taken.average_of,
            delay_steps=taken.delay_steps,
            fragment=taken.fragment,
            wait_seconds=wait_seconds,
        )
