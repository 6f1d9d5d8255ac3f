"""What all outer loops have in common: rounds of steps, and what a checkpoint has to keep of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine.comm.context import RankContext
from engine.config.layout import layout_of
from engine.config.methods.outer_methods import OUTER_METHODS, Gap, Variant
from engine.config.run_config import RunConfig
from engine.parallel.data.replica import Extent, Piece
from engine.parallel.local_sgd.replica_comm import BackgroundWorker, Link, Waits, Work


class Part(NamedTuple):
    """A part of a piece: elements ``start`` to ``stop`` of the vector, and of the piece from its ``first`` one on."""

    piece: Piece
    start: int
    stop: int
    first: int

    @property
    def extent(self) -> Extent:
        """Where it lies in the undivided model."""
        return self.piece.extent.with_start(self.piece.extent.start + self.first)


class FlatVector:
    """Pieces one after the other in fp32, padded so that ``ranks`` can share the vector evenly."""

    def __init__(self, pieces: Sequence[Piece], device: torch.device, ranks: int = 1) -> None:
        self.pieces, self._device = list(pieces), device
        self.elements = sum(piece.weight.numel() for piece in pieces)
        self.size = -(-self.elements // ranks) * ranks

    def copy(self) -> Tensor:
        """The weights [size] as they are now; the padding is 0."""
        vector = torch.zeros(self.size, device=self._device)
        for part in self.parts(0, self.size):
            vector[part.start : part.stop].copy_(part.piece.weight.detach().view(-1))
        return vector

    def parts(self, start: int, stop: int) -> Iterator[Part]:
        """The pieces, or parts of them, that lie between two elements."""
        offset = 0
        for piece in self.pieces:
            end = offset + piece.weight.numel()
            first, last = max(offset, start), min(end, stop)
            if first < last:
                yield Part(piece, first, last, first - offset)
            offset = end

    @torch.no_grad()
    def map_weights(self, vector: Tensor, new_weights: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Each piece's weights become ``new_weights(weights, its part of the vector)``, which may change that part."""
        for part in self.parts(0, self.size):
            weight, values = part.piece.weight.view(-1), vector[part.start : part.stop]
            weight.copy_(new_weights(weight.to(self._device), values))


def vector_values(_: Tensor, values: Tensor) -> Tensor:
    """The vector's values."""
    return values


def swap_values(weights: Tensor, values: Tensor) -> Tensor:
    """The vector's values, and the weights in their place."""
    new = values.clone()
    values.copy_(weights)
    return new


#: From this rank's part of the mean to its part of what every rank is to get.
Update = Callable[[Tensor], Tensor]


class Mean:
    """Averages ``buffer`` [flat.size] over replicas and spreads what an update makes of it.

    Whole: one all-reduce of 4 bytes an element, and every rank updates all. Sharded (with ZeRO): a reduce-scatter,
    each rank's update of its slice, and an all-gather: the bytes of one all-reduce, and one n-th of an update's state.
    """

    def __init__(self, flat: FlatVector, link: Link, sharded: bool) -> None:
        self.flat, self._link, self._sharded = flat, link, sharded
        slice_size = flat.size // link.size
        self.start, self.stop = (
            (link.rank * slice_size, link.rank * slice_size + slice_size) if sharded else (0, flat.size)
        )
        self.buffer = flat.copy()

    def parts(self) -> Iterator[Part]:
        """What this rank updates."""
        return self.flat.parts(self.start, self.stop)

    def own_part(self) -> Tensor:
        """A copy of this rank's part of the buffer."""
        return self.buffer[self.start : self.stop].clone()

    def work(self, update: Update) -> Work:
        """Average the buffer, update, and put what everybody's updates made into the buffer."""
        part = self.buffer
        if self._sharded:
            part = torch.empty_like(self.buffer[self.start : self.stop])
            yield self._link.reduce_scatter(part, self.buffer)
        else:
            yield self._link.all_reduce(part)
        yield from self.gather_parts(update(part.div_(self._link.size)))

    def gather_parts(self, part: Tensor) -> Work:
        """Put every rank's part into the buffer."""
        if self._sharded:
            yield self._link.all_gather(self.buffer, part)
        elif part is not self.buffer:
            self.buffer.copy_(part)


#: The kind of the event in which a rank tells of an average that it took over.
OUTER_EVENT = "outer"


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
class AppliedAverage:
    """An average that replicas took over: of which round, in which one, and how long ago it was sent."""

    round: int
    average_of: int
    delay_steps: int
    waits: Waits
    fragment: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything but the period. Where a run changes them as it goes, the next message has the new ones."""

    method: str
    learning_rate: float
    momentum: float
    clip: float | None
    gap: Gap
    variant: Variant
    fragments: int
    overlap: int
    mixing: float

    @property
    def only_averages(self) -> bool:
        """Whether a round ends with the mean itself: there is no anchor then, and no momentum."""
        return not OUTER_METHODS[self.method].has("learning_rate")


def settings_of(config: RunConfig) -> Settings:
    """The settings of a configuration whose method is not none, with the method's own where it gives no value."""
    outer, method = config.outer, OUTER_METHODS[config.outer.method]
    usual_momentum = method.momentum(layout_of(config).world_size)
    return Settings(
        outer.method,
        method.learning_rate if outer.learning_rate is None else outer.learning_rate,
        usual_momentum if outer.momentum is None else outer.momentum,
        outer.clip,
        outer.gap,
        outer.variant,
        outer.fragments if method.has("fragments") else 1,
        outer.overlap if method.has("overlap") else 0,
        outer.mixing if method.has("mixing") else 0.0,
    )


@dataclass(frozen=True, slots=True)
class LoopInput:
    """What a method makes its loop from, on one rank: the ``pieces`` that this rank updates, for each of them the
    share that counts in a sum over a replica's ranks, and ``bring``: to be called after weights were changed.
    """

    rank: RankContext
    link: Link
    settings: Settings
    pieces: Sequence[Piece]
    shares: Sequence[float]
    bring: Callable[[], None]


class OuterLoop(Protocol):
    """What an optimizer's steps are followed by. Every rank calls the same methods at the same steps."""

    def step(self) -> None:
        """After an inner step: send, or take over what has come, if it is time."""

    def drain(self) -> None:
        """Wait for what is under way; then state holds everything that the next steps need."""

    def finish(self) -> None:
        """After the last step: all replicas get one model, the one that is validated."""

    def publish_weights(self, weights_alone: bool) -> None:
        """After new values were put into weights and state; ``weights_alone``: the same for all replicas."""

    def vectors(self) -> Iterator[Vector]:
        """State by its place in the model."""

    def counters(self) -> dict[str, Tensor]:
        """The rest of the state, the same on all ranks, or under a name of this rank's own."""


class Rounds:
    """Counts: ``round`` is the running one, ``since`` the inner steps that it has behind it."""

    def __init__(self, rank: RankContext, bring: Callable[[], None]) -> None:
        self._rank, self.bring = rank, bring
        self.background = BackgroundWorker(rank.timer)
        self._unreported: deque[tuple[int, AppliedAverage]] = deque()
        self.round, self.since = (torch.zeros((), dtype=torch.int64) for _ in range(2))

    @property
    def period(self) -> int:
        """Inner steps of a round, which an order may change."""
        return self._rank.config.outer.period

    @property
    def settings(self) -> Settings:
        """As an order may have changed them. What works beside steps keeps those that it began with: ranks come to its
        end at different steps.
        """
        return settings_of(self._rank.config)

    def is_over(self) -> bool:
        """Count one inner step; whether it was the round's last one."""
        self.report_ready()
        self.background.progress()
        self.since += 1
        return int(self.since) >= self.period

    def next_round(self) -> None:
        """The next inner step is a new round's first one."""
        self.round += 1
        self.since.zero_()

    def report(self, average: AppliedAverage) -> None:
        """Record an average that was taken over, once the device has waited for it."""
        self._unreported.append((self._rank.timer.step, average))
        self.report_ready()

    def report_ready(self, wait: bool = False) -> None:
        """Record what the device is done with; ``wait`` for all of it after the last step."""
        clock = self._rank.timer.clock
        while self._unreported:
            step, average = self._unreported[0]
            ends = [end for _, end in average.waits[-1:]]
            if not all(map(clock.ready, ends)):
                if not wait:
                    return
                clock.wait(*ends)
            self._unreported.popleft()
            self._rank.writer.event(
                OUTER_EVENT,
                step=step,
                round=average.round,
                average_of=average.average_of,
                staleness=average.round - average.average_of,
                delay_steps=average.delay_steps,
                fragment=average.fragment,
                wait_seconds=sum((clock.seconds(*marks) for marks in average.waits), 0.0),
            )
