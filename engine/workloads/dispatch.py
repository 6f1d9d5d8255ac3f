"""Tokens to the slots of their experts and back, by gathers in both directions: the same bits on every run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.workloads.autograd import apply
from engine.workloads.routing import count


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

    def dropped(self) -> Tensor:
        """Share of all choices that found no slot, fp32 scalar."""
        return (self.slot == self.choice.shape[0]).float().mean()


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


def spread(tokens: Tensor, placement: Placement) -> Tensor:
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
