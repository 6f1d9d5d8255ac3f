"""Gradients sent in half precision."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.compression.interface import Message, Method, MethodInput, Reduction
from engine.compression.randomness import RandomStreams, ranges_of


class Cast(Method):
    """All-reduce in fp16 or bf16; divided before the sum so that it cannot overflow earlier than one value would."""

    def __init__(self, inputs: MethodInput, dtype: torch.dtype) -> None:
        self._link, self._spans = inputs.link, inputs.partition.spans
        self._narrow = inputs.content.flat.new_empty(sum(span.count for span in self._spans), dtype=dtype)

    def exchange(self, values: Tensor, flat: Tensor, streams: RandomStreams) -> Reduction:
        """Average through a narrow copy."""
        parts = self._narrow.split([span.count for span in self._spans])
        for span, narrow in zip(self._spans, parts, strict=True):
            self._cast_in_blocks(values[span.start : span.stop], narrow, values is not flat)
        yield self._link.all_reduce(self._narrow)
        for span, narrow in zip(self._spans, parts, strict=True):
            flat[span.start : span.stop].copy_(narrow)

    def messages(self) -> list[Message]:
        """Two bytes a value."""
        return [self._link.reduce_message(len(self._narrow), 2)]

    def _cast_in_blocks(self, values: Tensor, narrow: Tensor, keeps: bool) -> None:
        """In blocks that stay in a processor's cache."""
        for start, stop in ranges_of(values):
            block, to = values[start:stop], narrow[start:stop]
            to.copy_(block / self._link.size)
            if keeps:
                block.sub_(to.to(block.dtype), alpha=self._link.size)


def fp16(inputs: MethodInput) -> Method:
    """Half precision with ten bits after the point."""
    return Cast(inputs, torch.float16)


def bf16(inputs: MethodInput) -> Method:
    """The range of fp32 with seven bits after the point."""
    return Cast(inputs, torch.bfloat16)
