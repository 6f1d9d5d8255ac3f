"""Weight gradients from a part of the tokens: winner-take-all column-row sampling (WTA-CRS, arXiv 2305.15265).

The gradient of a matrix is a sum over tokens of outer products. Of so many kept tokens the likeliest count as they are,
and the others are drawn from the rest and weighed up, which leaves the mean exact. A token is as likely as the norm of
its input times what its gradient's norm was last time; how many are certain is chosen so that the rest weighs least.
Norms alone of inputs would tell nothing: behind an RMSNorm they are all alike.

The paper remembers a gradient's norm by sample, from one epoch to the next. Here it is remembered by the token that
follows, since windows of a long text never come again: norms for each pair of tokens took 256 times the memory, and
estimates scattered as much. Draws go through the tokens in random order with even steps, so that none is drawn
twice, which scatters less than independent ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.compression.randomness import RandomStreams
from engine.footprint.activations import SLOTS, count_sampled_rows
from engine.model.axes import Matrix
from engine.model.linear import weight_gradient

#: By how much a gradient's norm moves what is remembered of its token: single ones scatter widely.
_RATE = 0.1
#: This share of the probability falls evenly on all tokens: a norm that was small last time may have grown.
_EVEN = 0.1


class TokenSample(NamedTuple):
    """Tokens that count: their places, int64 [kept], and how much each weighs, fp32 [kept]."""

    places: Tensor
    weights: Tensor


def pick(likely: Tensor, rows: int, generator: torch.Generator | None = None) -> TokenSample:
    """So many of [tokens] with these probabilities: certain ones first, then draws from the rest, in even steps through
    their sum in random order.

    Of c certain ones with the sum P, a drawn one of probability p weighs (1 - P) / ((kept - c) p); c is the number for
    which (1 - P) / (kept - c) is least.
    """
    largest, order = likely.topk(rows)
    number = torch.arange(rows, device=likely.device)
    sums = largest.double().cumsum(0)
    before = torch.cat((sums.new_zeros(1), sums[:-1]))
    certain = ((1 - before) / (rows - number)).argmin()
    is_certain = number < certain
    uncertain = likely.double().scatter(0, order, torch.where(is_certain, 0.0, largest.double()))
    shuffled = torch.randperm(len(likely), generator=generator, device=likely.device)
    edges = uncertain[shuffled].cumsum(0)
    whole, draws = edges[-1], rows - certain
    start = torch.rand((), generator=generator, device=likely.device, dtype=torch.float64)
    positions = (number - certain + start).clamp_min(0) / draws * whole
    # Below the last edge: what lies on it would be a token that cannot be drawn.
    drawn = torch.searchsorted(edges, positions.clamp_max(whole * (1 - 1e-12)), right=True)
    places = torch.where(is_certain, order, shuffled[drawn.clamp_max(len(likely) - 1)])
    weights = torch.where(is_certain, 1.0, whole / (draws * uncertain[places].clamp_min(1e-300)))
    return TokenSample(places, weights.float())


class RowSampler:
    """One stage's: how large a share of the tokens counts, and which micro-batch its next forward is of."""

    def __init__(self, share: float, seed: int, rank: int) -> None:
        self.share, self._seed, self._rank = share, seed, rank
        self._step = self._micro_batch = 0
        #: Of the token that follows each one, [sequence / cp, batch]; None before the first micro-batch.
        self.slots: Tensor | None = None

    def begin_micro_batch(self, step: int, micro_batch: int, following: Tensor) -> None:
        """The next forward is of tokens that these follow, [batch, sequence / cp]."""
        self._step, self._micro_batch = step, micro_batch
        self.slots = (following % SLOTS).transpose(0, 1)

    def generator(self, index: int, device: torch.device) -> torch.Generator:
        """The same when a step is done again."""
        streams = RandomStreams(self._seed, self._rank, lambda: self._step, device)
        return streams.rank_generator(index, self._micro_batch)


class SampledProducts:
    """Products of one input with some matrices, which keep a part of its rows; ``index`` is theirs in the model."""

    def __init__(self, sampler: RowSampler, index: int) -> None:
        self.sampler, self._index = sampler, index
        self._norms: Tensor | None = None

    def products(self, x: Tensor, matrices: Sequence[Matrix], slots: Tensor | None) -> tuple[Tensor, ...]:
        """``x`` [sequence, batch, in] times each matrix; ``slots`` [sequence, batch] are its rows'."""
        rows = x.shape[:-1].numel()
        kept_rows = count_sampled_rows(rows, self.sampler.share)
        if kept_rows == rows:
            return tuple(matrix(x) for matrix in matrices)
        flat_slots = None if slots is None else slots.flatten()
        picked = self.pick(x, kept_rows, flat_slots)
        weights = [matrix.weight for matrix in matrices]
        behind = _BackwardContext(self, matrices, flat_slots)
        out: tuple[Tensor, ...] = _Products.apply(x, picked, behind, *weights)  # type: ignore[no-untyped-call]
        return out

    def pick(self, x: Tensor, rows: int, slots: Tensor | None) -> TokenSample:
        """Rows of ``x`` that count."""
        return pick(self.likely(x, slots), rows, self.sampler.generator(self._index, x.device))

    @torch.no_grad()
    def likely(self, x: Tensor, slots: Tensor | None) -> Tensor:
        """Probabilities of the rows of ``x`` [..., in], fp32 [rows]."""
        likely: Tensor = x.flatten(0, -2).float().norm(dim=1)
        if self._norms is not None and slots is not None:
            likely = likely * self._norms[slots]
        likely = likely.clamp_min(torch.finfo(torch.float32).tiny)
        return (1 - _EVEN) * likely / likely.sum() + _EVEN / len(likely)

    @torch.no_grad()
    def remember(self, slots: Tensor, norms: Tensor) -> None:
        """Of the gradients of all rows, fp32 [rows]; many of one token count together."""
        if self._norms is None:
            self._norms = norms.mean().expand(SLOTS).clone()
        counts = torch.zeros_like(self._norms).index_add_(0, slots, torch.ones_like(norms))[slots]
        moved = (norms - self._norms[slots]) * _RATE / (1 + _RATE * (counts - 1))
        self._norms.index_add_(0, slots, moved)


class _BackwardContext(NamedTuple):
    """What backward needs beside tensors that autograd keeps."""

    products: SampledProducts
    matrices: Sequence[Matrix]
    slots: Tensor | None


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, picked: TokenSample, behind: _BackwardContext, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x.flatten(0, -2).index_select(0, picked.places), *picked, *weights)
        ctx.behind, ctx.shape = behind, x.shape
        return tuple(F.linear(x, weight.to(x.dtype)) for weight in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, places, scales, *weights = ctx.saved_tensors
        behind, flat = ctx.behind, [gradient.flatten(0, -2) for gradient in gradients]
        products = [
            gradient @ weight.to(gradient.dtype) for gradient, weight in zip(flat, weights, strict=True)
        ]
        if behind.slots is not None:
            norms = torch.stack([gradient.float().square().sum(dim=1) for gradient in flat]).sum(dim=0).sqrt()
            behind.products.remember(behind.slots, norms)
        back = torch.stack(products).sum(dim=0) if len(products) > 1 else products[0]
        weight_gradients: list[Tensor | None] = []
        for gradient, weight, matrix in zip(flat, weights, behind.matrices, strict=True):
            few = gradient.index_select(0, places) * scales.unsqueeze(1).to(gradient.dtype)
            if matrix.deferred is not None and matrix.deferred.note(matrix.weight, few, rows):
                weight_gradients.append(None)
            else:
                weight_gradients.append(weight_gradient(few, rows).to(weight.dtype))
        return back.view(ctx.shape), None, None, *weight_gradients
