"""The mean of a vector over replicas, of which each rank may update its slice alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from engine.outer.background import Work
from engine.outer.flat import Flat, Part
from engine.outer.link import Link

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
