"""Coarse messages to the rank that needs an average, where no other rank does: what a reduce-scatter sends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.compression.blocks import BLOCK_VALUES
from engine.compression.compressor import Reduction
from engine.compression.content import Content, Kept, Message
from engine.compression.dealing import Dealt
from engine.compression.draws import Draws
from engine.compression.link import Link
from engine.compression.rows import RowCodec
from engine.compression.settings import Value


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Values [start, stop) of the bucket that one rank needs, and where their message begins among all of them."""

    start: int
    stop: int
    codec: RowCodec
    place: int

    def message(self, all_: Tensor) -> Tensor:
        """This stretch's part of the messages to one rank."""
        return all_[self.place : self.place + self.codec.size(self.stop - self.start)]


class OneWay:
    """An all-to-all of coded slices, and each rank averages its own in fp32: ZeRO++'s qgZ (arXiv 2306.10209) without
    its hierarchy. The bucket is cut into as many equal slices as there are ranks; of the others' no average is there.
    """

    def __init__(
        self, link: Link, content: Content, dealt: Dealt, codec_of: Callable[[Value], RowCodec], noisy: bool
    ) -> None:
        self._link, self._index, self._noisy = link, content.index, noisy
        self._each = len(content.flat) // link.size
        self._stretches = [list(self._cut(rank, dealt, codec_of)) for rank in range(link.size)]
        self._sizes = [_bytes(stretches) for stretches in self._stretches]
        self._sent = content.flat.new_zeros(sum(self._sizes), dtype=torch.uint8)
        self._received = self._sent.new_empty(link.size * self._sizes[link.rank])

    def exchange(self, values: Tensor, flat: Tensor, draws: Draws) -> Reduction:
        """One message to each rank."""
        noise = self._noise(flat, draws)
        for stretches, messages in zip(self._stretches, self._sent.split(self._sizes), strict=True):
            for one in stretches:
                one.codec.encode(values[one.start : one.stop], one.message(messages), noise)
        own = self._sizes[self._link.rank]
        yield self._link.all_to_all(self._received, self._sent, [own] * self._link.size, self._sizes)
        for one in self._stretches[self._link.rank]:
            mean = flat[one.start : one.stop].zero_()
            for messages in self._received.split(own):
                one.codec.decode(one.message(messages), mean, share=1 / self._link.size)

    def messages(self) -> list[Message]:
        """Each rank's slice to it, whatever it holds; this one's own counts as sent, as in any all-to-all."""
        return [Message("all_to_all", sum(self._sizes))]

    def kept(self) -> list[Kept]:
        """Nothing."""
        return []

    def fold(self, memory: Tensor) -> None:
        """Nothing to add."""

    def _cut(self, rank: int, dealt: Dealt, codec_of: Callable[[Value], RowCodec]) -> Iterator[_Stretch]:
        first, place = rank * self._each, 0
        for run in dealt.runs:
            start, stop = max(run.start, first), min(run.stop, first + self._each)
            if start < stop:
                codec = codec_of(run.value)
                yield _Stretch(start, stop, codec, place)
                place += codec.size(stop - start)

    def _noise(self, like: Tensor, draws: Draws) -> Tensor | None:
        """One block for all blocks: each value is rounded without bias, if not on its own."""
        if not self._noisy:
            return None
        stretches = [one for stretches in self._stretches for one in stretches]
        longest = max([max(one.stop - one.start, one.codec.length) for one in stretches], default=0)
        count = (
            max(BLOCK_VALUES, *(one.codec.length for one in stretches))
            if like.device.type == "cpu"
            else longest
        )
        return torch.rand(count, generator=draws.own(self._index), device=like.device)


def _bytes(stretches: list[_Stretch]) -> int:
    return sum(one.codec.size(one.stop - one.start) for one in stretches)
