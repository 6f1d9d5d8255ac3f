"""The weights that a rank updates as one vector, and the mean of a vector over replicas.

With ZeRO each rank may update its slice of the mean alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.parallel.data.replica import Extent, Piece
from engine.parallel.local_sgd.replica_comm import Link, Work


class Part(NamedTuple):
    """A part of a piece: elements ``start`` to ``stop`` of the vector, and of the piece from its ``first`` one on."""

    piece: Piece
    start: int
    stop: int
    first: int

    @property
    def extent(self) -> Extent:
        """Where it lies in the undivided model."""
        return self.piece.extent.beginning_at(self.piece.extent.start + self.first)


class Flat:
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
    def turn(self, vector: Tensor, turn: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Each piece's weights become ``turn(weights, its part of the vector)``, which may change that part."""
        for part in self.parts(0, self.size):
            weight, values = part.piece.weight.view(-1), vector[part.start : part.stop]
            weight.copy_(turn(weight.to(self._device), values))


def taken(_: Tensor, values: Tensor) -> Tensor:
    """The vector's values."""
    return values


def exchanged(weights: Tensor, values: Tensor) -> Tensor:
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

    def __init__(self, flat: Flat, link: Link, sharded: bool) -> None:
        self.flat, self._link, self._sharded = flat, link, sharded
        each = flat.size // link.size
        self.start, self.stop = (link.rank * each, link.rank * each + each) if sharded else (0, flat.size)
        self.buffer = flat.copy()

    def parts(self) -> Iterator[Part]:
        """What this rank updates."""
        return self.flat.parts(self.start, self.stop)

    def mine(self) -> Tensor:
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
        yield from self.spread(update(part.div_(self._link.size)))

    def spread(self, part: Tensor) -> Work:
        """Put every rank's part into the buffer."""
        if self._sharded:
            yield self._link.all_gather(self.buffer, part)
        elif part is not self.buffer:
            self.buffer.copy_(part)
