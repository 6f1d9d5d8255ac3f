"""Context parallelism: who holds which tokens, and how attention sees all of them; ring.py and ulysses.py split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.comm.channel import Channel
from engine.model.axes import ContextAxis
from engine.parallel.context.attention import causal_attention
from engine.parallel.context.ring import RingAttention


@dataclass(frozen=True, slots=True)
class UlyssesAttention:
    """This rank's place on the axis; it holds consecutive tokens."""

    channel: Channel

    @property
    def size(self) -> int:
        """Ranks on the axis."""
        return self.channel.size

    @property
    def rank(self) -> int:
        """Place on the axis, from 0."""
        return self.channel.rank

    def positions(self, sequence_length: int) -> Tensor:
        """int64 [sequence / cp]: the ``rank``-th part of the sequence.

        Raises:
            ValueError: the sequence is no multiple of cp.
        """
        if sequence_length % self.size:
            raise ValueError(f"{self.size} ranks need a sequence that is a multiple of {self.size}")
        return torch.arange(sequence_length).view(self.size, -1)[self.rank]

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention over the whole sequence, for this rank's queries; shapes as in ``ContextAxis``.

        Raises:
            ValueError: heads or kv_heads is no multiple of cp.
        """
        if query.shape[1] % self.size or key.shape[1] % self.size:
            raise ValueError(
                f"Ulysses on {self.size} ranks needs heads and kv_heads that are multiples of {self.size}, "
                f"got {query.shape[1]} and {key.shape[1]}"
            )
        heads = [x.shape[1] // self.size for x in (query, key, value)]
        whole = self._exchange(torch.cat([self._by_rank(x) for x in (query, key, value)], dim=3)).flatten(
            0, 1
        )
        mixed = causal_attention(*whole.permute(1, 2, 0, 3).split(heads, dim=1))
        back = self._exchange(mixed.permute(2, 0, 1, 3).unflatten(0, (self.size, -1)))
        return back.permute(1, 2, 0, 3, 4).flatten(2, 3).permute(1, 2, 0, 3)

    def _by_rank(self, x: Tensor) -> Tensor:
        """[batch, heads, sequence / cp, head_dim] -> [cp, sequence / cp, batch, heads / cp, head_dim]."""
        parts: Tensor = x.unflatten(1, (self.size, -1))
        return parts.permute(1, 3, 0, 2, 4)

    def _exchange(self, x: Tensor) -> Tensor:
        """[cp, ...] by rank it goes to -> [cp, ...] by rank it comes from."""
        function: type[torch.autograd.Function] = _AllToAll
        out: Tensor = function.apply(x, self.channel)
        return out


def ulysses_bytes(
    *,
    size: int,
    batch: int,
    sequence_length: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    element_bytes: int,
) -> int:
    """Bytes that each rank hands to its two all-to-alls for one layer, forward or backward alike.

    Queries, keys and values go one way, the result comes back; 1 / cp of it stays on its rank.
    """
    return 2 * (heads + kv_heads) * batch * (sequence_length // size) * head_dim * element_bytes


class _AllToAll(torch.autograd.Function):
    """Even shares: the gradient goes back by the same exchange."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, channel: Channel) -> Tensor:
        ctx.channel = channel
        return channel.all_to_all(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.channel.all_to_all(gradient), None


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
