"""Gradients sent in half precision."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.compression.bucket_comm import Link
from engine.compression.interface import Kept, Message, Reduction
from engine.compression.partition import Dealt
from engine.compression.randomness import Draws, ranges_of

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Cast:
    """All-reduce in fp16 or bf16; divided before the sum so that it cannot overflow earlier than one value would."""

    def __init__(self, method: str, link: Link, dealt: Dealt, like: Tensor) -> None:
        self._link, self._runs = link, dealt.runs
        self._narrow = like.new_empty(sum(run.count for run in self._runs), dtype=DTYPES[method])

    def exchange(self, values: Tensor, flat: Tensor, draws: Draws) -> Reduction:
        """Average through a narrow copy."""
        parts = self._narrow.split([run.count for run in self._runs])
        for run, narrow in zip(self._runs, parts, strict=True):
            self._narrowed(values[run.start : run.stop], narrow, values is not flat)
        yield self._link.all_reduce(self._narrow)
        for run, narrow in zip(self._runs, parts, strict=True):
            flat[run.start : run.stop].copy_(narrow)

    def messages(self) -> list[Message]:
        """Two bytes a value."""
        return [self._link.reduced(len(self._narrow), 2)]

    def kept(self) -> list[Kept]:
        """Nothing."""
        return []

    def fold(self, memory: Tensor) -> None:
        """Nothing to add."""

    def _narrowed(self, values: Tensor, narrow: Tensor, keeps: bool) -> None:
        """In blocks that stay in a processor's cache."""
        for start, stop in ranges_of(values):
            block, to = values[start:stop], narrow[start:stop]
            to.copy_(block / self._link.size)
            if keeps:
                block.sub_(to.to(block.dtype), alpha=self._link.size)
