"""Tokens to the slots of their experts and back, and the experts' matrix products.

Tokens move by gathers in both directions: the same bits on every run. Products in which each group of rows has a
matrix of its own are one grouped GEMM, or a loop over groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.comm import host_values
from engine.model.linear import apply


def count(groups: Tensor, size: int) -> Tensor:
    """How often each of 0 to ``size - 1`` occurs in an int64 [n]; unlike bincount it never waits for a GPU."""
    return groups.new_zeros(size).scatter_add_(0, groups, torch.ones_like(groups))


@dataclass(frozen=True, slots=True)
class Placement:
    """Who sits where. Choice number ``rank * tokens + token`` is a token's rank-th best expert.

    ``slot`` int64 [top_k, tokens] is each choice's slot, the number of slots where it is dropped; ``choice``
    int64 [slots] is each slot's choice, the number of choices where it is empty.
    """

    slot: Tensor
    choice: Tensor
    is_full: bool  #: no slot empty, no choice dropped

    @property
    def token(self) -> Tensor:
        """Each slot's token [slots]; the number of tokens where it is empty."""
        tokens = self.slot.shape[1]
        token = self.choice % tokens
        return token if self.is_full else token.masked_fill_(self.choice == self.slot.numel(), tokens)

    def filled_slots(self, experts: int) -> Tensor:
        """Slots of each expert that a choice has, int64 [experts]."""
        return (self.choice < self.slot.numel()).view(experts, -1).sum(dim=1)


def place_sorted(chosen: Tensor) -> Placement:
    """A slot for every choice of [tokens, top_k], sorted by expert."""
    choice = chosen.t().flatten().argsort(stable=True)
    slot = torch.empty_like(choice)
    slot[choice] = torch.arange(choice.shape[0], device=choice.device)
    return Placement(slot.view(chosen.shape[1], -1), choice, is_full=True)


def place_padded(chosen: Tensor, experts: int, capacity: int, groups: Tensor | None = None) -> Placement:
    """``capacity`` slots for each expert: first choices fill them in the order of tokens, then second choices.

    That order is arXiv 2006.16668's (algorithm 1), so lower choices are dropped first. With ``groups`` int64
    [tokens], numbers from 0, each group has its own ``capacity`` slots at every expert. Slots are numbered by
    expert, then group.
    """
    buckets = chosen.t().flatten()
    if groups is not None:
        split = int(groups.max()) + 1
        buckets, experts = buckets * split + groups.repeat(chosen.shape[1]), experts * split
    counts = count(buckets, experts)
    order = buckets.argsort(stable=True)
    bucket = buckets[order]
    numbers = torch.arange(order.shape[0], device=order.device)
    place = numbers - (counts.cumsum(0) - counts)[bucket]
    slots = experts * capacity
    slot = torch.empty_like(order)
    slot[order] = (bucket * capacity + place).masked_fill_(place >= capacity, slots)
    choice = torch.full((slots + 1,), order.shape[0], device=order.device)
    choice[slot] = numbers
    return Placement(slot.view(chosen.shape[1], -1), choice[:-1], is_full=False)


def spread_tokens(tokens: Tensor, placement: Placement) -> Tensor:
    """[tokens, hidden] -> [slots, hidden], zeros in empty slots."""
    return apply(_Spread, tokens, placement)


def combine(results: Tensor, weights: Tensor, placement: Placement) -> Tensor:
    """[slots, hidden] and weights [tokens, top_k] -> weighted sums [tokens, hidden]; a dropped choice adds nothing.

    Sums are taken in fp32 and given in the dtype of the results.
    """
    return apply(_Combine, results, weights, placement)


def _rows(x: Tensor, index: Tensor, is_full: bool) -> Tensor:
    """Rows of ``x``; without ``is_full`` an index one past its end gives zeros."""
    if is_full:
        return x.index_select(0, index)
    missing = (index == x.shape[0]).unsqueeze(-1)
    return x.index_select(0, index.clamp(max=x.shape[0] - 1)).masked_fill_(missing, 0.0)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, placement: Placement) -> Tensor:
        ctx.save_for_backward(placement.slot, placement.choice)
        ctx.is_full = placement.is_full
        return _rows(tokens, placement.token, placement.is_full)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        first, *others = ctx.saved_tensors[0]
        total = _rows(gradient, first, ctx.is_full).float()
        for slot in others:
            total += _rows(gradient, slot, ctx.is_full)
        return total.to(gradient.dtype), None


class _Combine(torch.autograd.Function):
    """Keeps the results once, not a weighted copy for each choice."""

    @staticmethod
    def forward(ctx: Any, results: Tensor, weights: Tensor, placement: Placement) -> Tensor:
        ctx.save_for_backward(results, weights, placement.slot, placement.choice)
        ctx.is_full = placement.is_full
        total = torch.zeros(weights.shape[0], results.shape[1], dtype=torch.float32, device=results.device)
        for slot, weight in zip(placement.slot, weights.unbind(1), strict=True):
            total.addcmul_(_rows(results, slot, placement.is_full).float(), weight.unsqueeze(-1))
        return total.to(results.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        results, weights, slots, choice = ctx.saved_tensors
        token = Placement(slots, choice, ctx.is_full).token
        by_choice = torch.cat((weights.t().flatten(), weights.new_zeros(1)))
        for_results = _rows(gradient, token, ctx.is_full) * by_choice[choice].unsqueeze(-1)
        parts = [(_rows(results, slot, ctx.is_full).float() * gradient).sum(dim=-1) for slot in slots]
        return for_results.to(results.dtype), torch.stack(parts, dim=1), None


_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ALIGNMENT_BYTES = 16
_FIRST_CAPABILITY = (8, 0)


def grouped_linear(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Rows [rows, in] sorted by group, weight [groups, out, in], rows of each group int64 [groups] -> [rows, out].

    Groups may be empty, all of them too; the counts have to sum to the number of rows. It computes in the dtype of
    ``x``; of wider matrices no copy is kept for backward.
    """
    if x.dtype != weight.dtype:
        return apply(_CastGroupedLinear, x, weight, counts)
    if not has_grouped_gemm(x, weight):
        return looped_linear(x, weight, counts)
    if x.is_cuda:
        weight = apply(_ZeroWhereEmpty, weight, counts)
    offsets = counts.cumsum(0, dtype=torch.int32)
    return apply(_DenseGradient, F.grouped_mm(x, weight.transpose(1, 2), offs=offsets))


def looped_linear(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """``grouped_linear`` by one product a group; it waits for the counts."""
    parts = x.split(host_values.numbers(counts))
    return torch.cat([F.linear(part, matrix) for part, matrix in zip(parts, weight.unbind(0), strict=True)])


def batched_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Equally large groups [groups, rows, in], weight [groups, out, in] -> [groups, rows, out], in ``x``'s dtype."""
    return apply(_BatchedLinear, x, weight)


def has_grouped_gemm(x: Tensor, weight: Tensor) -> bool:
    """Whether torch has a grouped GEMM for these: 2.10 or later, a CPU or an NVIDIA GPU from Ampere on, a dtype
    of 16 or 32 bits, and rows of whole 16 bytes on both sides.
    """
    aligned = all(width * x.element_size() % _ALIGNMENT_BYTES == 0 for width in weight.shape[1:])
    # torch.compile's own account of the operator refuses every dtype but this one.
    dtypes = (torch.bfloat16,) if torch.compiler.is_compiling() else _DTYPES
    supported = hasattr(F, "grouped_mm") and x.dtype in dtypes and x.dtype == weight.dtype
    return aligned and supported and x.shape[0] > 0 and _device_has_it(x.device)


def _device_has_it(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.version.hip is None and torch.cuda.get_device_capability(device) >= _FIRST_CAPABILITY
    return device.type == "cpu"


class _BatchedLinear(torch.autograd.Function):
    """Its weight's gradient comes in the weight's own layout; that of a transposed bmm would be copied into it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.to(x.dtype).transpose(1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        back = torch.bmm(gradient, weight.to(gradient.dtype))
        return back, torch.bmm(gradient.transpose(1, 2), x).to(weight.dtype)


class _CastGroupedLinear(torch.autograd.Function):
    """Casts its matrices in forward and again in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, counts)
        return grouped_linear(x, weight.to(x.dtype), counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, counts = ctx.saved_tensors
        narrow, gradient = weight.to(x.dtype), gradient.contiguous()
        back = grouped_linear(gradient, narrow.transpose(1, 2), counts)
        return back, _grouped_weight_gradient(gradient, x, narrow, counts).to(weight.dtype), None


def _grouped_weight_gradient(gradient: Tensor, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """[groups, out, in] from the gradient of the product [rows, out] and its input [rows, in], sorted by group."""
    if not has_grouped_gemm(x, weight):
        sizes = host_values.numbers(counts)
        pairs = zip(gradient.split(sizes), x.split(sizes), strict=True)
        return torch.stack([of_out.t() @ rows for of_out, rows in pairs])
    product: Tensor = F.grouped_mm(gradient.t(), x, offs=counts.cumsum(0, dtype=torch.int32))
    return product.masked_fill((counts == 0).view(-1, 1, 1), 0.0) if x.is_cuda else product


class _DenseGradient(torch.autograd.Function):
    """Identity: the grouped GEMM's backward refuses an expanded gradient, such as that of a sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.contiguous()


class _ZeroWhereEmpty(torch.autograd.Function):
    """Identity on weights: an empty group's gradient is zero.

    On Blackwell torch's kernel leaves it unwritten (pytorch issue 172439).
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, counts: Tensor) -> Tensor:
        ctx.save_for_backward(counts)
        return weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (counts,) = ctx.saved_tensors
        return gradient.masked_fill((counts == 0).view(-1, 1, 1), 0.0), None
