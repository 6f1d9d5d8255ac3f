"""What a model asks of the tensor-parallel axis it is split over."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn


class Deferral(Protocol):
    """Takes the gradient of a matrix later than the gradient of its input, where a schedule asks for that."""

    def linear(self, x: Tensor, weight: nn.Parameter) -> Tensor:
        """``x`` [..., in] times ``weight`` [out, in]."""


class TensorAxis(Protocol):
    """Collectives and slices over tp; with one rank each of them is the identity."""

    @property
    def size(self) -> int:
        """Ranks on the axis."""

    @property
    def rank(self) -> int:
        """This rank's place on it."""

    def gather_sequence(self, x: Tensor) -> Tensor:
        """[sequence / tp, ...] -> [sequence, ...]; its gradient is reduced and scattered."""

    def scatter_sequence(self, x: Tensor) -> Tensor:
        """Partial [sequence, ...] -> summed [sequence / tp, ...]; its gradient is gathered."""

    def shard(self, full: Tensor, dim: int | None) -> Tensor:
        """This rank's part of a full parameter; all of it where ``dim`` is None."""

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over tokens of logits [tokens, vocabulary / tp]."""
