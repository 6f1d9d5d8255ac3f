"""Tensor parallelism with sequence-parallel norms (arXiv 2205.05198) on local tensors.

Activations are [sequence, batch, hidden]. Between blocks each rank holds a slice of the sequence; in front of
a block's matrices the slices are gathered, behind them the partial sums are reduced and scattered. What is
sent per block and direction: two all-gathers and two reduce-scatters of the whole activation; backward two more
all-gathers where only slices are kept (tensor_chunked.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.comm.channel import Channel
from engine.model.axes import Matrix
from engine.model.linear import apply
from engine.parallel.collectives import all_gather, reduce_scatter
from engine.parallel.tensor_chunked import Cut, chunked_columns, chunked_rows, regathered_products


@dataclass(slots=True)
class Chunks:
    """In how many parts products are computed; all that refer to it follow a change."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """This rank's place on the tp axis; with size 1 every operation is the identity.

    With ``regathers`` what products keep for backward is this rank's slice of their input, gathered again then. With
    more than one of the ``chunks`` they are computed in so many parts, beside what is sent.
    """

    channel: Channel | None = None
    regathers: bool = False
    chunks: Chunks = field(default_factory=Chunks)

    @property
    def size(self) -> int:
        """Ranks on the axis."""
        return 1 if self.channel is None else self.channel.size

    @property
    def rank(self) -> int:
        """Place on the axis, from 0."""
        return 0 if self.channel is None else self.channel.rank

    def gather_sequence(self, x: Tensor) -> Tensor:
        """[sequence / tp, ...] -> [sequence, ...]; its gradient is reduced and scattered."""
        return x if self.channel is None else all_gather(x, self.channel)

    def column_products(self, x: Tensor, matrices: Sequence[Matrix]) -> tuple[Tensor, ...]:
        """[sequence / tp, ..., in] -> [sequence, ..., out / tp] for each matrix; one gather for all of them."""
        if self.channel is not None and self.chunks.count > 1:
            return chunked_columns(x, Cut(self.channel, self.chunks.count, self.regathers), matrices)
        if self.channel is not None and self.regathers:
            return regathered_products(x, self.channel, matrices)
        whole = self.gather_sequence(x)
        return tuple(matrix(whole) for matrix in matrices)

    def row_product(self, x: Tensor, matrix: Matrix) -> Tensor:
        """[sequence, ..., in / tp] -> the sum over ranks, of which each keeps [sequence / tp, ..., out]."""
        if self.channel is not None and self.chunks.count > 1:
            return chunked_rows(x, Cut(self.channel, self.chunks.count), matrix)
        return self.scatter_sequence(matrix(x))

    def keeping_gathered(self) -> TensorParallel:
        """This axis with products that keep the gathered input."""
        return replace(self, regathers=False)

    def scatter_sequence(self, x: Tensor) -> Tensor:
        """Partial [sequence, ...] -> summed [sequence / tp, ...]; its gradient is gathered."""
        return x if self.channel is None else reduce_scatter(x, self.channel)

    def shard(self, full: Tensor, dim: int | None) -> Tensor:
        """This rank's part of a full parameter; all of it where ``dim`` is None."""
        return full if dim is None else full.chunk(self.size, dim)[self.rank].clone()

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over tokens; ``logits`` [tokens, vocabulary / tp] are taken in fp32."""
        if self.channel is None:
            return torch.nn.functional.cross_entropy(logits.float(), targets)
        return apply(_VocabularyParallelLoss, logits.float(), targets, self.channel).mean()


class _VocabularyParallelLoss(torch.autograd.Function):
    """Cross entropy over a vocabulary that is split over tp: three numbers a token are gathered, not the logits.

    Each rank's largest logit, its sum of exponentials relative to that, and its target's logit (0 elsewhere).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, channel: Channel) -> Tensor:
        peak = logits.amax(dim=-1)
        exponentials = (logits - peak.unsqueeze(-1)).exp_()
        local = targets - channel.rank * logits.shape[-1]
        mine = (local >= 0) & (local < logits.shape[-1])
        local = local.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)
        target_logits = logits.gather(-1, local).squeeze(-1).masked_fill(~mine, 0.0)
        gathered = channel.all_gather(torch.stack((peak, exponentials.sum(dim=-1), target_logits)))
        peaks, sums, chosen = gathered.unflatten(0, (channel.size, 3)).unbind(1)
        highest = peaks.amax(dim=0)
        total = (sums * (peaks - highest).exp()).sum(dim=0)
        ctx.save_for_backward(exponentials.mul_(((peak - highest).exp() / total).unsqueeze(-1)), local, mine)
        losses: Tensor = total.log() + highest - chosen.sum(dim=0)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        probabilities, local, mine = ctx.saved_tensors
        result = probabilities.scatter_add(-1, local, -mine.to(probabilities.dtype).unsqueeze(-1))
        return result * gradient.unsqueeze(-1), None, None


def sum_gradients(gradients: list[Tensor], channel: Channel) -> None:
    """Sum gradients of which each rank has a part, in one flat message: of norm weights under sequence parallelism, or
    of what stages of a pipeline share.
    """
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    channel.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
