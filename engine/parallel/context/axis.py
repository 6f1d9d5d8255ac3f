"""Context parallelism: who holds which tokens, and how attention sees all of them; a ring has a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engine.comm.channel import Channel
from engine.model.axes import ContextAxis, GroupAxis
from engine.parallel.collectives import all_to_all
from engine.parallel.context.attention import causal_attention
from engine.parallel.context.ring import RingAttention


@dataclass(frozen=True, slots=True)
class UlyssesAttention(GroupAxis):
    """Ulysses attention (arXiv 2309.14509): all-to-alls turn a part of the sequence into a part of the heads and back.

    Between them every rank has the whole sequence for its heads, so any attention kernel will do. A rank holds
    consecutive tokens.
    """

    def positions(self, sequence_length: int) -> Tensor:
        """int64 [sequence / cp]: the ``rank``-th part of the sequence.

        Raises:
            ValueError: the sequence is no multiple of cp.
        """
        if sequence_length % self.size:
            raise ValueError(f"{self.size} ranks need a sequence that is a multiple of {self.size}")
        return torch.arange(sequence_length).view(self.size, -1)[self.rank]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None = None) -> Tensor:
        """Causal attention over the whole sequence, for this rank's queries; shapes as in ``ContextAxis``.

        Raises:
            ValueError: heads or kv_heads is no multiple of cp.
        """
        assert visible is None, "documents are masked where one rank holds the sequence"
        if query.shape[1] % self.size or key.shape[1] % self.size:
            raise ValueError(
                f"Ulysses on {self.size} ranks needs heads and kv_heads that are multiples of {self.size}, "
                f"got {query.shape[1]} and {key.shape[1]}"
            )
        return _with_all_tokens(query, key, value, self.channel, causal_attention)


@dataclass(frozen=True, slots=True)
class WholeSequence:
    """One rank holds every token."""

    size: int = 1
    rank: int = 0

    def positions(self, sequence_length: int) -> Tensor:
        """int64 [sequence]: all of them."""
        return torch.arange(sequence_length)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None = None) -> Tensor:
        """Causal attention, or over what is ``visible``; shapes as in ``ContextAxis``."""
        return causal_attention(query, key, value, visible)


@dataclass(slots=True)
class DocumentAttention:
    """Whole documents, which ranks of a group share as in Ulysses; each token sees its own document alone.

    ``channels`` lead to the groups that there are, by their size. Every forward and its backward are of what was begun
    last: documents of these ``lengths`` one after the other, split evenly over the ranks of a group; before that a
    sequence is one document.
    """

    channels: Mapping[int, Channel]
    lengths: tuple[int, ...] = ()
    size: int = 1
    rank: int = 0
    _channel: Channel | None = None

    def begin(self, degree: int, lengths: Sequence[int]) -> None:
        """What comes next; all ranks of the group say the same."""
        self.lengths, self._channel = tuple(lengths), None if degree == 1 else self.channels[degree]

    def positions(self, sequence_length: int) -> Tensor:
        """int64 [sequence]: of one document as long as that."""
        return torch.arange(sequence_length)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None = None) -> Tensor:
        """Causal attention inside of each document, for this rank's queries; shapes as in ``ContextAxis``, with
        all tokens / ranks of the group for the sequence.
        """
        if self._channel is None:
            return self._one_by_one(query, key, value)
        return _with_all_tokens(query, key, value, self._channel, self._one_by_one)

    def _one_by_one(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not self.lengths:
            return causal_attention(query, key, value)
        documents = zip(*(x.split(self.lengths, dim=2) for x in (query, key, value)), strict=True)
        return torch.cat([causal_attention(*document) for document in documents], dim=2)


def _with_all_tokens(
    query: Tensor, key: Tensor, value: Tensor, channel: Channel, attention: Callable[..., Tensor]
) -> Tensor:
    """What ``attention`` gives for all tokens and this rank's heads, exchanged for all heads and this rank's tokens."""
    heads = [x.shape[1] // channel.size for x in (query, key, value)]
    # [ranks, ...] by the rank it goes to -> [ranks, ...] by the rank it comes from.
    parts = torch.cat([_by_rank(x, channel.size) for x in (query, key, value)], dim=3)
    whole = all_to_all(parts, channel).flatten(0, 1)
    mixed = attention(*whole.permute(1, 2, 0, 3).split(heads, dim=1))
    back = all_to_all(mixed.permute(2, 0, 1, 3).unflatten(0, (channel.size, -1)), channel)
    return back.permute(1, 2, 0, 3, 4).flatten(2, 3).permute(1, 2, 0, 3)


def _by_rank(x: Tensor, size: int) -> Tensor:
    """[batch, heads, tokens, head_dim] -> [size, tokens, batch, heads / size, head_dim]."""
    parts: Tensor = x.unflatten(1, (size, -1))
    return parts.permute(1, 3, 0, 2, 4)


def context_axis(method: Literal["ring", "ulysses"], channel: Channel | None) -> ContextAxis:
    """This rank's place on the cp axis; without a channel the axis has one rank."""
    if channel is None:
        return WholeSequence()
    return RingAttention(channel) if method == "ring" else UlyssesAttention(channel)
