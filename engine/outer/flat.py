"""The weights that a rank updates, as one vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.parallel.extent import Extent
from engine.parallel.replica import Piece


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
