"""Only the largest gradient values are sent; what was left out is added to the next step's gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.channel import Group, all_gather_single
from engine.compression.compressor import Future, then


class TopK:
    """Top-k sparsification with error feedback (arXiv 1809.07599).

    Each rank sends its k = ratio * n largest values and their places in one all-gather of 2k 4-byte words.
    Without ``error_feedback`` the rest is lost, which is here to be compared against.
    """

    def __init__(self, group: Group, ratio: float, error_feedback: bool = True) -> None:
        self._group, self._size = group, group.size()
        self._ratio, self._error_feedback = ratio, error_feedback
        self._errors: dict[int, Tensor] = {}

    def reduce(self, bucket: int, flat: Tensor) -> Future:
        """Average the ranks' selected values into ``flat``; all others become zero."""
        memory = self.memory(bucket, flat)
        if memory is not None:
            flat.add_(memory)
        places = flat.abs().topk(self._count(flat.numel()), sorted=False).indices
        values = flat[places]
        if memory is not None:
            self._errors[bucket] = flat.clone().index_fill_(0, places, 0.0)
        message = torch.cat((values.view(torch.int32), places.to(torch.int32)))
        everyone = message.new_empty(self._size * message.numel())
        work = all_gather_single(everyone, message, group=self._group, async_op=True)
        return then(work, lambda: self._sum(flat, everyone))

    def payload_bytes(self, elements: int) -> int:
        """Gathered bytes: a value and a place from each rank."""
        return 8 * self._count(elements) * self._size

    def memory(self, bucket: int, flat: Tensor) -> Tensor | None:
        """What was left out so far; zeros in the beginning."""
        if self._error_feedback and bucket not in self._errors:
            self._errors[bucket] = torch.zeros_like(flat)
        return self._errors.get(bucket)

    def _count(self, elements: int) -> int:
        return max(1, int(self._ratio * elements))

    def _sum(self, flat: Tensor, everyone: Tensor) -> Tensor:
        flat.zero_()
        for message in everyone.chunk(self._size):
            values, places = message.chunk(2)
            flat.index_add_(0, places, values.view(torch.float32))
        return flat.div_(self._size)
