"""The optimizer of a run: AdamW alone, or followed by an outer loop."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib import import_module

from torch import Tensor

from engine.comm.channel import Group
from engine.comm.context import RankContext
from engine.config.methods.outer_methods import OUTER_METHODS
from engine.parallel.data.optimizer import LocalOptimizer
from engine.parallel.data.replica import Extent, Replica
from engine.parallel.local_sgd.replica_comm import Link
from engine.parallel.local_sgd.rounds import LoopInput, OuterLoop, settings_of


def optimizer_of(rank: RankContext, replicas: Sequence[Replica]) -> LocalOptimizer:
    """What a configuration asks for."""
    if rank.groups.outer is None:
        return LocalOptimizer(replicas, rank.groups, rank.config.train)
    return OuterOptimizer(rank, replicas, rank.groups.outer)


def outer_loop(inputs: LoopInput) -> OuterLoop:
    """The loop of the method that the settings name."""
    method = OUTER_METHODS[inputs.settings.method]
    loop: OuterLoop = getattr(import_module(method.module), method.build)(inputs)
    return loop


class OuterOptimizer(LocalOptimizer):
    """AdamW on what this replica computed, then the outer loop."""

    def __init__(self, rank: RankContext, replicas: Sequence[Replica], group: Group) -> None:
        super().__init__(replicas, rank.groups, rank.config.train)
        link, settings = Link(group, rank.device, rank.timer), settings_of(rank.config)
        bring = super().publish_weights
        self._number, self._count = rank.layout.replica(rank.groups.coordinates), rank.layout.replicas
        self.outer = outer_loop(LoopInput(rank, link, settings, self.pieces, self.shares, bring))

    def step(self) -> float:
        """As without an outer loop; the norm is that of this replica's gradients."""
        norm = super().step()
        if math.isfinite(norm):
            self.outer.step()
        return norm

    def publish_weights(self, weights_alone: bool = False) -> None:
        """After new values were put into pieces and state; ``weights_alone``: into pieces alone."""
        super().publish_weights()
        self.outer.publish_weights(weights_alone)

    @property
    def place(self) -> str:
        """``@1of4``; nothing for the first replica, whose state is found where a run without replicas has its own."""
        return f"@{self._number}of{self._count}" if self._number else ""

    def outer_state(self) -> Iterator[tuple[str, Extent | None, Tensor]]:
        """The outer loop's state."""
        for vector in self.outer.vectors():
            place = "" if vector.shared else self.place
            for part in vector.parts:
                values = vector.values[part.start - vector.origin : part.stop - vector.origin]
                yield f"{part.piece.name}.{vector.name}{place}", part.extent, values
        for name, counter in self.outer.counters().items():
            yield name, None, counter

    def drain(self) -> None:
        """Wait for what is under way between replicas."""
        self.outer.drain()

    def finish(self) -> None:
        """After the last step: all replicas get one model."""
        self.outer.finish()
