"""What compression carries from step to step, under the names and places of the undivided model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from engine.compression.interface import Compressor, Content, Kept
from engine.parallel.data.replica import Extent, Piece, ReplicaMemory, extent, partial_over_tp


@dataclass(frozen=True, slots=True)
class Owner:
    """The rank that carries it: its parameters, and (place, number) of ranks with copies, and over tp."""

    named: Mapping[str, nn.Parameter]
    ranks: tuple[int, int]
    tp: tuple[int, int]

    def over_tp(self, name: str) -> str:
        """Tells ranks apart that tp gave the same parameter: their gradients differ."""
        place, size = self.tp
        return f".tp{place}of{size}" if size > 1 and partial_over_tp(self.named[name]) else ""


def carried(compressor: Compressor, content: Content, owner: Owner) -> list[ReplicaMemory]:
    """One bucket's error memory, which is another one on each rank, and what a method keeps beside it."""
    errors = compressor.memory(content)
    found = [_kept(one, owner) for one in compressor.kept(content)]
    if errors is None:
        return found
    place, size = owner.ranks
    return found + [
        ReplicaMemory(
            f"{part.name}.{place}of{size}{owner.over_tp(part.name)}",
            errors[part.start : part.stop],
            extent(owner.named[part.name]),
        )
        for part in content.parts
    ]


def _kept(one: Kept, owner: Owner) -> ReplicaMemory:
    """A slice belongs to elements of the parameter; a factor to the part of it that the rank holds."""
    name, lies = (
        f"{one.part.name}.{one.kind}{owner.over_tp(one.part.name)}",
        extent(owner.named[one.part.name]),
    )
    if one.shape is None:
        return ReplicaMemory(name, one.values, lies.beginning_at(one.first))
    if lies.sizes != lies.shape:
        name += f".at{'-'.join(map(str, lies.offsets))}"
    return ReplicaMemory(name, one.values, Extent(one.shape, (0,) * len(one.shape), one.shape))


def delayed(pieces: list[Piece], owner: Owner) -> list[ReplicaMemory]:
    """Averages that the next step applies, of what this rank updates; the same on all ranks that update it."""
    return [
        ReplicaMemory(
            f"{piece.name}.delayed{owner.over_tp(piece.name)}", piece.gradient().flatten(), piece.extent
        )
        for piece in pieces
    ]
