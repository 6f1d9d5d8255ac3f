"""What the host reads where a device would have computed something: plausible numbers, no two readings alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

#: By how much one reading differs from the one before: a loss that never moves ends a run.
_APART = 1e-3


@dataclass
class Readings:
    """Numbers that a device might have given. A loss or a norm is a little above 1; a count is 1, unless it is known
    how much is counted: then it is dealt unevenly.
    """

    _taken: int = 0
    _dealt: list[int] = field(default_factory=list)

    def number(self, dtype: torch.dtype) -> float | int | bool:
        """For one value."""
        if dtype == torch.bool:
            return True
        self._taken += 1
        return 1 + _APART * self._taken if dtype.is_floating_point else 1

    def fill(self, host: Tensor) -> Tensor:
        """For a tensor in the host's memory, in place."""
        if self._dealt and host.dtype == torch.int64 and host.ndim:
            return _deal(host, self._dealt[-1])
        return host.fill_(self.number(host.dtype))

    @contextmanager
    def dealing(self, total: int) -> Iterator[None]:
        """While inside, integers that are read add up to so many along their last dimension, row by row."""
        self._dealt.append(total)
        try:
            yield
        finally:
            self._dealt.pop()


def _deal(host: Tensor, total: int) -> Tensor:
    """Nobody gets none but by rounding; the first gets more than the others, of odd rows the last one does."""
    rows, count = host.view(-1, host.shape[-1]), host.shape[-1]
    each = total // (count + 1)
    rows.fill_(each)
    for place, row in enumerate(rows):
        row[-1 if place % 2 else 0] += total - each * count
    return host
