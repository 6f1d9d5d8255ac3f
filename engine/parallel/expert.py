"""Expert parallelism (arXiv 2006.16668): ranks with different tokens hold different experts and exchange rows.

Sent per layer and micro-batch: rows to their experts and results back in forward, and the gradients of both in
backward, each an all-to-all. Without a capacity the sizes are uneven and a small all-to-all tells them first. Rows
may travel in bf16, or in int8 with a scale for each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.comm import host_values
from engine.model.axes import Compute, GroupAxis
from engine.model.linear import apply
from engine.parallel.collectives import all_to_all

Format = Literal["none", "bf16", "int8"]
_SCALE_BYTES = 4
_LEVELS = 127


@dataclass(frozen=True, slots=True)
class ExpertParallel(GroupAxis):
    """This rank's place on the ep axis; ``sends`` is the format in which rows and their gradients travel."""

    sends: Format = "none"

    def run_sorted(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        """Rows [rows, hidden] sorted by expert, ``counts`` int64 [experts] of each -> results in the same order.

        Waits for the counts: the host has to know the sizes of what it sends and receives.
        """
        received = self.channel.all_to_all(counts).view(self.size, -1)
        sizes = host_values.numbers(torch.stack((counts.view(self.size, -1).sum(dim=1), received.sum(dim=1))))
        send, receive = sizes
        order = _by_expert(received, sum(receive))
        arrived = _permute(all_to_all(rows, self, send, receive), order)
        results = compute(arrived, received.sum(dim=0))
        return all_to_all(_permute(results, _inverse(order)), self, receive, send)

    def run_padded(self, slots: Tensor, compute: Compute) -> Tensor:
        """Slots [experts, capacity, hidden] -> results in the same places; no size depends on the routing."""
        arrived = all_to_all(slots, self).unflatten(0, (self.size, -1))
        results = compute(arrived.transpose(0, 1).flatten(1, 2), None)
        back = results.unflatten(1, (self.size, -1)).transpose(0, 1).flatten(0, 1)
        return all_to_all(back, self)

    def all_to_all(
        self, x: Tensor, send: list[int] | None = None, receive: list[int] | None = None
    ) -> Tensor:
        """``Channel.all_to_all`` in this axis's format; without sizes all but the first dimension is a row's."""
        if self.sends == "none":
            return self.channel.all_to_all(x, send, receive)
        message = _coarse(x.reshape(-1, x.shape[-1]), self.sends)
        rows = _whole(self.channel.all_to_all(message, send, receive), self.sends, x.dtype)
        return rows.view(-1, *x.shape[1:])


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


def _coarse(rows: Tensor, format_: Format) -> Tensor:
    """Rows [n, width] as they are sent: [n, width] of bf16, or uint8 [n, width + 4].

    int8 rounds multiples of a row's maximum / 127 to the nearest.
    """
    if format_ == "bf16":
        return rows.to(torch.bfloat16)
    wide = rows.float()
    scales = wide.abs().amax(dim=1, keepdim=True).clamp_min_(1e-30).div_(_LEVELS)
    message = torch.empty((len(rows), rows.shape[1] + _SCALE_BYTES), dtype=torch.uint8, device=rows.device)
    message[:, :-_SCALE_BYTES] = (wide / scales).round_().to(torch.int8).view(torch.uint8)
    message[:, -_SCALE_BYTES:] = scales.view(torch.uint8)
    return message


def _whole(message: Tensor, format_: Format, dtype: torch.dtype) -> Tensor:
    """The rows [n, width] that a message tells of."""
    if format_ == "bf16":
        return message.to(dtype)
    scales = message[:, -_SCALE_BYTES:].contiguous().view(torch.float32)
    return (message[:, :-_SCALE_BYTES].view(torch.int8) * scales).to(dtype)
