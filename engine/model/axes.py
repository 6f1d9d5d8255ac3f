"""What a model asks of the axes it is split over: tensor, context and expert parallelism."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from engine.comm.channel import Channel

#: This rank's experts on rows [rows, hidden] sorted by expert, with the rows of each expert as an int64 tensor;
#: or on [own experts, rows, hidden] with None. The result has the shape of the rows.
Compute = Callable[[Tensor, Tensor | None], Tensor]


class ExpertAxis(Protocol):
    """Brings rows to the ranks that hold their experts, and the results back; expert e lives on rank
    ``e // (experts / size)``. Both directions are differentiable; every rank of the axis makes the same calls.
    """

    @property
    def size(self) -> int:
        """Ranks on the axis; it divides the number of experts."""

    @property
    def rank(self) -> int:
        """This rank's place on it."""

    def run_sorted(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        """Rows [rows, hidden] sorted by expert, ``counts`` int64 [experts] of each -> results in the same order."""

    def run_padded(self, slots: Tensor, compute: Compute) -> Tensor:
        """Slots [experts, capacity, hidden], equally many for each expert -> results in the same places."""


@dataclass(frozen=True, slots=True)
class GroupAxis:
    """An axis whose ranks are those of a group."""

    channel: Channel

    @property
    def size(self) -> int:
        """Ranks on the axis."""
        return self.channel.size

    @property
    def rank(self) -> int:
        """Place on the axis, from 0."""
        return self.channel.rank


@dataclass(frozen=True, slots=True)
class LocalExperts:
    """All experts on this rank: nothing is sent."""

    size: int = 1
    rank: int = 0

    def run_sorted(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        return compute(rows, counts)

    def run_padded(self, slots: Tensor, compute: Compute) -> Tensor:
        return compute(slots, None)


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

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None = None) -> Tensor:
        """Causal attention over the whole sequence, for this rank's tokens; of a whole one, over what is ``visible``
        (bool [batch, 1, queries, keys]).

        ``query`` is [batch, heads, sequence / cp, head_dim], ``key`` and ``value`` [batch, kv_heads,
        sequence / cp, head_dim] with heads a multiple of kv_heads; the result is like ``query``.
        """


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
    """Collectives and slices over tp; with one rank each of them is the identity.

    Matrices that are ``replicated`` are not split: every rank has them whole, and multiplies its own slice of the
    sequence with them.
    """

    @property
    def replicated(self) -> frozenset[str]:
        """By the names of ``parallel.tp_replicated``."""

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

    def select_axis(self, matrices: str) -> TensorAxis:
        """The axis that these matrices are split over: of one rank where they are replicated."""

    def my_slice(self, x: Tensor) -> Tensor:
        """[sequence, ...] -> [sequence / tp, ...] of what every rank has; it has no gradient."""

    def sequence_to_width(self, parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """[sequence / tp, batch, width] of each -> [sequence, batch, width / tp], in one message."""

    def width_to_sequence(self, x: Tensor) -> Tensor:
        """[sequence, batch, width / tp] -> [sequence / tp, batch, width]."""

    def mean(self, x: Tensor) -> Tensor:
        """Of a number over ranks; each rank's share of its gradient is 1 / tp."""

    def with_gathered_inputs(self) -> TensorAxis:
        """The same axis, whose products keep the gathered input for backward whatever was asked for."""

    def scatter_sequence(self, x: Tensor) -> Tensor:
        """Partial [sequence, ...] -> summed [sequence / tp, ...]; its gradient is gathered."""

    def shard(self, full: Tensor, dim: int | None) -> Tensor:
        """This rank's part of a full parameter; all of it where ``dim`` is None."""

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over tokens of logits [tokens, vocabulary / tp]."""


@dataclass(frozen=True, slots=True)
class Axes:
    """One rank's place on every axis that its part of the model meets; ``data`` are the ranks with other tokens, and
    ``columns`` those of them over which the columns of the embedding are split, None where each has all.
    """

    tensor: TensorAxis
    context: ContextAxis
    expert: ExpertAxis
    data: Channel | None = None
    columns: Channel | None = None
