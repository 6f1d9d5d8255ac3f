"""Parameters that are one: tied embeddings, and layers that share theirs; which stages hold them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.config.presets import resolve
from engine.config.sections import Model

_BLOCK = re.compile(r"^blocks\.(\d+)\.")
#: The decoder's embedding, and the matrix that is the same one where embeddings are tied.
EMBEDDINGS = ("embedding.weight", "head.weight")


@dataclass(frozen=True, slots=True)
class Sharing:
    """Each ``layers_each`` layers in a row share one set of parameters (ALBERT, arXiv 1909.11942); of the two names of
    ``tied`` parameters the second stands for the first (arXiv 1608.05859).
    """

    layers_each: int = 1
    tied: tuple[str, str] | None = None

    def first(self, layer: int) -> int:
        """The layer that a layer's parameters are called after."""
        return layer // self.layers_each * self.layers_each

    def name(self, full_name: str) -> str:
        """The one name of a parameter, from any of those that modules have for it."""
        if self.tied is not None and full_name == self.tied[1]:
            return self.tied[0]
        block = _BLOCK.match(full_name)
        if block is None:
            return full_name
        return f"blocks.{self.first(int(block[1]))}.{full_name[block.end() :]}"

    def names(self, full_name: str) -> list[str]:
        """All names of the parameter that modules call so."""
        if self.tied is not None and full_name in self.tied:
            return list(self.tied)
        block = _BLOCK.match(full_name)
        if block is None:
            return [full_name]
        first, suffix = self.first(int(block[1])), full_name[block.end() :]
        return [f"blocks.{number}.{suffix}" for number in range(first, first + self.layers_each)]

    def sets(self, layers: range) -> list[range]:
        """The layers of a stage, those together that share parameters."""
        members = dict[int, list[int]]()
        for layer in layers:
            members.setdefault(self.first(layer), []).append(layer)
        return [range(same[0], same[-1] + 1) for same in members.values()]


@dataclass(frozen=True)
class Holders:
    """Who holds a parameter: ``layers`` of each stage, and on which place of the pipeline each stage is."""

    sharing: Sharing
    layers: Sequence[range]
    places: Sequence[int]

    def stages(self, name: str) -> tuple[int, ...]:
        """All stages that hold a parameter that modules share, by its one name; none of any other."""
        sharing = self.sharing
        if sharing.tied is not None and name == sharing.tied[0]:
            return tuple(sorted({0, len(self.layers) - 1}))
        block = _BLOCK.match(name)
        if block is None or sharing.layers_each == 1:
            return ()
        first = int(block[1])
        same = range(first, first + sharing.layers_each)
        holding = (stage for stage, layers in enumerate(self.layers) if set(layers) & set(same))
        return tuple(holding)

    def meeting(self, name: str) -> tuple[int, ...]:
        """The places of the pipeline whose gradients of a parameter are summed; none where one place has them all."""
        places = tuple(sorted({self.places[stage] for stage in self.stages(name)}))
        return places if len(places) > 1 else ()

    def meetings(self) -> list[tuple[int, ...]]:
        """All different ones, in order."""
        firsts = {self.sharing.first(layer) for layers in self.layers for layer in layers}
        names = [f"blocks.{first}." for first in firsts]
        names += [] if self.sharing.tied is None else [self.sharing.tied[0]]
        return sorted({self.meeting(name) for name in names} - {()})


def sharing_of(model: Model) -> Sharing:
    """Of the decoder, whose groups are of equal size."""
    tied = EMBEDDINGS if model.tied_embeddings else None
    return Sharing(_layers_each(model, resolve(model).layers), tied)


def sharing_among(model: Model, blocks: int, tied: tuple[str, str] | None) -> Sharing:
    """Of another workload with so many blocks, which says what ``tied`` embeddings are in it."""
    return Sharing(_layers_each(model, blocks), tied if model.tied_embeddings else None)


def _layers_each(model: Model, layers: int) -> int:
    return max(1, layers // (model.layer_groups or layers))
