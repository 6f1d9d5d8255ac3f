"""Tensor parallelism with sequence-parallel norms (arXiv 2205.05198) on local tensors.

Activations are [sequence, batch, hidden]. Between blocks each rank holds a slice of the sequence; in front of
a block's matrices the slices are gathered, behind them the partial sums are reduced and scattered. What is
sent per block and direction: two all-gathers and two reduce-scatters of the whole activation; backward two more
all-gathers where only slices are kept (tensor_chunked.py).

Matrices that are ``replicated`` are not split: each rank has them whole and multiplies its own slice of the sequence
with them. An all-to-all turns slices into heads or columns where those meet (as in arXiv 2309.14509). Gradients of such
matrices are partial, and their sum over tp is as large as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.comm.boxing import box
from engine.comm.channel import Channel
from engine.comm.signatures import PARTIAL, REPLICATED, split
from engine.model.axes import Matrix
from engine.model.linear import apply
from engine.parallel.collectives import redistribute
from engine.parallel.tensor_chunked import Chunking, chunked_columns, chunked_rows, regathered_products

#: Activations are [sequence, batch, width].
_SEQUENCE, _WIDTH = split(0), split(2)


@dataclass(slots=True)
class Chunks:
    """In how many parts products are computed; all that refer to it follow a change."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """This rank's place on the tp axis; with size 1 every operation is the identity.

    With ``regathers`` what products keep for backward is this rank's slice of their input, gathered again then. With
    more than one of the ``chunks`` they are computed in so many parts, beside what is sent. ``replicated`` are names
    of matrices.
    """

    channel: Channel | None = None
    regathers: bool = False
    chunks: Chunks = field(default_factory=Chunks)
    replicated: frozenset[str] = frozenset()

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
        return x if self.channel is None else redistribute(x, _SEQUENCE, REPLICATED, self.channel)

    def column_products(self, x: Tensor, matrices: Sequence[Matrix]) -> tuple[Tensor, ...]:
        """[sequence / tp, ..., in] -> [sequence, ..., out / tp] for each matrix; one gather for all of them."""
        if self.channel is not None and self.chunks.count > 1:
            return chunked_columns(x, Chunking(self.channel, self.chunks.count, self.regathers), matrices)
        if self.channel is not None and self.regathers:
            return regathered_products(x, self.channel, matrices)
        whole = self.gather_sequence(x)
        return tuple(matrix(whole) for matrix in matrices)

    def row_product(self, x: Tensor, matrix: Matrix) -> Tensor:
        """[sequence, ..., in / tp] -> the sum over ranks, of which each keeps [sequence / tp, ..., out]."""
        if self.channel is not None and self.chunks.count > 1:
            return chunked_rows(x, Chunking(self.channel, self.chunks.count), matrix)
        return self.scatter_sequence(matrix(x))

    def select_axis(self, matrices: str) -> TensorParallel:
        """The axis that these matrices are split over: of one rank where they are replicated."""
        return TensorParallel() if matrices in self.replicated else self

    def my_slice(self, x: Tensor) -> Tensor:
        """[sequence, ...] -> [sequence / tp, ...] of what every rank has; it has no gradient."""
        return x if self.channel is None else box(x, REPLICATED, _SEQUENCE, self.channel)

    def sequence_to_width(self, parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """[sequence / tp, batch, width] of each -> [sequence, batch, width / tp], in one message."""
        if self.channel is None:
            return tuple(parts)
        widths = [part.shape[-1] // self.size for part in parts]
        by_rank = torch.cat([part.unflatten(-1, (self.size, -1)) for part in parts], dim=-1).flatten(-2)
        turned = redistribute(by_rank, _SEQUENCE, _WIDTH, self.channel)
        # Each in memory of its own: a view that backward keeps would keep all of them.
        return tuple(part.contiguous() for part in turned.split(widths, dim=-1))

    def width_to_sequence(self, x: Tensor) -> Tensor:
        """[sequence, batch, width / tp] -> [sequence / tp, batch, width]."""
        return x if self.channel is None else redistribute(x, _WIDTH, _SEQUENCE, self.channel)

    def mean(self, x: Tensor) -> Tensor:
        """Of a number over ranks; each rank's share of its gradient is 1 / tp."""
        return x if self.channel is None else apply(_Mean, x, self.channel)

    def with_gathered_inputs(self) -> TensorParallel:
        """This axis with products that keep the gathered input."""
        return replace(self, regathers=False)

    def scatter_sequence(self, x: Tensor) -> Tensor:
        """Partial [sequence, ...] -> summed [sequence / tp, ...]; its gradient is gathered."""
        return x if self.channel is None else redistribute(x, PARTIAL, _SEQUENCE, self.channel)

    def shard(self, full: Tensor, dim: int | None) -> Tensor:
        """This rank's part of a full parameter; all of it where ``dim`` is None."""
        return full if dim is None else full.chunk(self.size, dim)[self.rank].clone()

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over tokens; ``logits`` [tokens, vocabulary / tp] are taken in fp32."""
        if self.channel is None:
            return torch.nn.functional.cross_entropy(logits.float(), targets)
        return apply(_VocabularyParallelLoss, logits.float(), targets, self.channel).mean()


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, channel: Channel) -> Tensor:
        ctx.size = channel.size
        return box(x, PARTIAL, REPLICATED, channel) / channel.size

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient / ctx.size, None


class _VocabularyParallelLoss(torch.autograd.Function):
    """Cross entropy over a vocabulary that is split over tp: three numbers a token are gathered, not the logits.

    Each rank's largest logit, its sum of exponentials relative to that, and its target's logit (0 elsewhere).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, channel: Channel) -> Tensor:
        peak = logits.amax(dim=-1)
        exponentials = (logits - peak.unsqueeze(-1)).exp_()
        local = targets - channel.rank * logits.shape[-1]
        is_local = (local >= 0) & (local < logits.shape[-1])
        local = local.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)
        target_logits = logits.gather(-1, local).squeeze(-1).masked_fill(~is_local, 0.0)
        gathered = channel.all_gather(torch.stack((peak, exponentials.sum(dim=-1), target_logits)))
        peaks, sums, chosen = gathered.unflatten(0, (channel.size, 3)).unbind(1)
        highest = peaks.amax(dim=0)
        total = (sums * (peaks - highest).exp()).sum(dim=0)
        ctx.save_for_backward(
            exponentials.mul_(((peak - highest).exp() / total).unsqueeze(-1)), local, is_local
        )
        losses: Tensor = total.log() + highest - chosen.sum(dim=0)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        probabilities, local, is_local = ctx.saved_tensors
        result = probabilities.scatter_add(-1, local, -is_local.to(probabilities.dtype).unsqueeze(-1))
        return result * gradient.unsqueeze(-1), None, None


def sum_gradients(gradients: list[Tensor], channel: Channel) -> None:
    """Sum gradients of which each rank has a part, in one flat message: of norm weights under sequence parallelism, of
    what is replicated over tp, or of what stages of a pipeline share.
    """
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    channel.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
