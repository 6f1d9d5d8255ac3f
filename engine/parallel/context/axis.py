"""Context parallelism: who holds which tokens, and how attention sees all of them; ring.py and ulysses.py split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engine.comm.channel import Channel
from engine.model.axes import ContextAxis
from engine.parallel.context.attention import causal_attention
from engine.parallel.context.ring import RingAttention
from engine.parallel.context.ulysses import UlyssesAttention


@dataclass(frozen=True, slots=True)
class WholeSequence:
    """One rank holds every token."""

    size: int = 1
    rank: int = 0

    def positions(self, sequence_length: int) -> Tensor:
        """int64 [sequence]: all of them."""
        return torch.arange(sequence_length)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention; shapes as in ``ContextAxis``."""
        return causal_attention(query, key, value)


def context_axis(method: Literal["ring", "ulysses"], channel: Channel | None) -> ContextAxis:
    """This rank's place on the cp axis; without a channel the axis has one rank."""
    if channel is None:
        return WholeSequence()
    return RingAttention(channel) if method == "ring" else UlyssesAttention(channel)
