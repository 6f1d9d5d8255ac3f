"""What a model asks of the axes it is split over."""

from __future__ import annotations

from collections.abc import Sequence
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

    def note(self, weight: nn.Parameter, gradient: Tensor, x: Tensor) -> bool:
        """Keep the factors of a matrix's gradient for later; False if it is to be taken at once."""


class Matrix(Protocol):
    """A matrix [out, in] without bias that may be split over tp, and whose gradient may be ``deferred``."""

    weight: nn.Parameter
    deferred: Deferral | None

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""


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

    def column_products(self, x: Tensor, matrices: Sequence[Matrix]) -> tuple[Tensor, ...]:
        """[sequence / tp, ..., in] -> [sequence, ..., out] for each of some matrices whose columns are split."""

    def row_product(self, x: Tensor, matrix: Matrix) -> Tensor:
        """[sequence, ..., in / tp] -> summed over tp [sequence / tp, ..., out], of a matrix whose rows are split."""

    def keeping_gathered(self) -> TensorAxis:
        """The same axis, whose products keep the gathered input for backward whatever was asked for."""

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
