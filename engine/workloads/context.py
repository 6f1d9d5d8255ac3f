"""What a model asks of the context-parallel axis its sequence is split over."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class ContextAxis(Protocol):
    """Each rank holds sequence / cp tokens; attention is the only place where they meet those of other ranks."""

    @property
    def size(self) -> int:
        """Ranks on the axis."""

    @property
    def rank(self) -> int:
        """This rank's place on it."""

    def positions(self, sequence_length: int) -> Tensor:
        """Places in the whole sequence of this rank's tokens, rising: int64 [sequence / cp] on the CPU.

        Raises:
            ValueError: the sequence does not split evenly.
        """

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention over the whole sequence, for this rank's tokens.

        ``query`` is [batch, heads, sequence / cp, head_dim], ``key`` and ``value`` [batch, kv_heads,
        sequence / cp, head_dim] with heads a multiple of kv_heads; the result is like ``query``.
        """
