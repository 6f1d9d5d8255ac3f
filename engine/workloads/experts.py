"""What a mixture of experts asks of the expert-parallel axis, and the axis of one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

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
class LocalExperts:
    """All experts on this rank: nothing is sent."""

    size: int = 1
    rank: int = 0

    def run_sorted(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        """As the axis says."""
        return compute(rows, counts)

    def run_padded(self, slots: Tensor, compute: Compute) -> Tensor:
        """As the axis says."""
        return compute(slots, None)
