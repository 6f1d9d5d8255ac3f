"""What a model asks of the axes it is split over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from engine.channel import Channel
from engine.workloads.context import ContextAxis
from engine.workloads.experts import ExpertAxis


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


@dataclass(frozen=True, slots=True)
class Axes:
    """One rank's place on every axis that its part of the model meets; ``data`` are the ranks with other tokens."""

    tensor: TensorAxis
    context: ContextAxis
    expert: ExpertAxis
    data: Channel | None = None
