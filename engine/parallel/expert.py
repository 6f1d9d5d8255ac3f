"""Expert parallelism (arXiv 2006.16668): ranks with different tokens hold different experts and exchange rows.

Sent per layer and micro-batch: rows to their experts and results back in forward, and the gradients of both in
backward, each an all-to-all. Without a capacity the sizes are uneven and a small all-to-all tells them first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.comm import host_values
from engine.comm.channel import Channel
from engine.compression.non_gradients import Format, coarse, row_bytes, whole
from engine.model.axes import Compute
from engine.model.linear import apply

_COUNT_BYTES = 8


@dataclass(frozen=True, slots=True)
class ExpertParallel:
    """This rank's place on the ep axis; ``sends`` is the format in which rows and their gradients travel."""

    channel: Channel
    sends: Format = "none"

    @property
    def size(self) -> int:
        """Ranks on the axis."""
        return self.channel.size

    @property
    def rank(self) -> int:
        """Place on the axis, from 0."""
        return self.channel.rank

    def run_sorted(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        """Rows [rows, hidden] sorted by expert, ``counts`` int64 [experts] of each -> results in the same order.

        Waits for the counts: the host has to know the sizes of what it sends and receives.
        """
        received = self.channel.all_to_all(counts).view(self.size, -1)
        sizes = host_values.numbers(torch.stack((counts.view(self.size, -1).sum(dim=1), received.sum(dim=1))))
        send, receive = sizes
        order = _by_expert(received, sum(receive))
        arrived = _permute(self._exchange(rows, send, receive), order)
        results = compute(arrived, received.sum(dim=0))
        return self._exchange(_permute(results, _inverse(order)), receive, send)

    def run_padded(self, slots: Tensor, compute: Compute) -> Tensor:
        """Slots [experts, capacity, hidden] -> results in the same places; no size depends on the routing."""
        arrived = self._exchange(slots).unflatten(0, (self.size, -1))
        results = compute(arrived.transpose(0, 1).flatten(1, 2), None)
        back = results.unflatten(1, (self.size, -1)).transpose(0, 1).flatten(0, 1)
        return self._exchange(back)

    def _exchange(self, x: Tensor, send: list[int] | None = None, receive: list[int] | None = None) -> Tensor:
        return apply(_Exchange, x, self, send, receive)

    def bring(self, x: Tensor, send: list[int] | None, receive: list[int] | None) -> Tensor:
        """``Channel.all_to_all`` in this axis's format; without sizes all but the first dimension is a row's."""
        if self.sends == "none":
            return self.channel.all_to_all(x, send, receive)
        message = coarse(x.reshape(-1, x.shape[-1]), self.sends)
        rows = whole(self.channel.all_to_all(message, send, receive), self.sends, x.dtype)
        return rows.view(-1, *x.shape[1:])


def sorted_bytes(
    sent: int, received: int, hidden: int, experts: int, itemsize: int, sends: Format = "none"
) -> int:
    """All-to-all bytes of one rank per layer and micro-batch, forward and backward, without a capacity.

    ``sent`` rows are tokens * top_k; ``received`` are those that chose this rank's experts, on average as many.
    Rows leave in forward and their results' gradients in backward, results and rows' gradients return.
    """
    return 2 * (sent + received) * row_bytes(sends, hidden, itemsize) + _COUNT_BYTES * experts


def padded_bytes(capacity: int, hidden: int, experts: int, itemsize: int, sends: Format = "none") -> int:
    """The same with ``capacity`` slots for each expert: four times all slots, used or not."""
    return 4 * experts * capacity * row_bytes(sends, hidden, itemsize)


def _by_expert(received: Tensor, rows: int) -> Tensor | None:
    """Order of rows by expert that arrive by source, ``received`` [ep, experts / ep] of each; None if they are."""
    if received.shape[1] == 1:
        return None
    numbers = torch.arange(received.shape[1], device=received.device).repeat(received.shape[0])
    return numbers.repeat_interleave(received.flatten(), output_size=rows).argsort(stable=True)


def _inverse(order: Tensor | None) -> Tensor | None:
    if order is None:
        return None
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.shape[0], device=order.device)
    return inverse


def _permute(x: Tensor, order: Tensor | None) -> Tensor:
    return x if order is None else apply(_Permute, x, order)


class _Permute(torch.autograd.Function):
    """A gather whose backward is one too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return x.index_select(0, order)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (order,) = ctx.saved_tensors
        return torch.empty_like(gradient).index_copy_(0, order, gradient), None


class _Exchange(torch.autograd.Function):
    """All-to-all along dim 0; its backward goes the other way."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, axis: ExpertParallel, send: list[int] | None, receive: list[int] | None
    ) -> Tensor:
        ctx.axis, ctx.send, ctx.receive = axis, send, receive
        return axis.bring(x, send, receive)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.axis.bring(gradient, ctx.receive, ctx.send), None, None, None
