"""Which experts a token goes to, and what keeps the experts evenly loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from engine.comm.channel import Channel
from engine.model.linear import apply


@dataclass(frozen=True, slots=True)
class Routing:
    """The decision for [tokens]: softmax over experts, the ``top_k`` experts best first, and their weights."""

    probabilities: Tensor  #: fp32 [tokens, experts]
    chosen: Tensor  #: int64 [tokens, top_k]
    weights: Tensor  #: fp32 [tokens, top_k]

    def counts(self) -> Tensor:
        """Choices that fall on each expert, int64 [experts]."""
        return count(self.chosen.flatten(), self.probabilities.shape[1])

    def margins(self) -> Tensor:
        """By how much the last chosen expert beats the best one left out, [tokens]; zero is a tie."""
        ranked = self.probabilities.sort(dim=-1, descending=True).values
        last = self.chosen.shape[1] - 1
        return ranked[:, last] - ranked[:, min(last + 1, ranked.shape[1] - 1)]


class Router(nn.Module):
    """Scores [tokens, hidden] in fp32 against a row [hidden] per expert; replicated over tp, its gradient partial.

    The weights of the chosen sum to 1. With one expert a token the probability itself is the weight
    (arXiv 2101.03961, eq. 2): a constant 1 would teach the router nothing.
    """

    tp_dim = None

    def __init__(self, experts: int, hidden: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.weight = nn.Parameter(torch.empty(experts, hidden))

    def forward(self, tokens: Tensor) -> Routing:
        """Route [tokens, hidden] of any dtype."""
        probabilities = F.linear(tokens.float(), self.weight.float()).softmax(dim=-1)
        weights, chosen = probabilities.topk(self.top_k, dim=-1)
        if self.top_k > 1:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return Routing(probabilities, chosen, weights)


def count(groups: Tensor, size: int) -> Tensor:
    """How often each of 0 to ``size - 1`` occurs in an int64 [n]; unlike bincount it never waits for a GPU."""
    return groups.new_zeros(size).scatter_add_(0, groups, torch.ones_like(groups))


def balance_loss(routing: Routing, counts: Tensor, data: Channel | None) -> Tensor:
    """experts * sum_e f_e * P_e (arXiv 2101.03961, eq. 4-6, without its weight); 1 when evenly loaded.

    f_e is the share of all choices that fall on expert e, from ``counts`` int64 [experts] summed over the data
    ranks (one all-reduce of 8 bytes an expert). P_e is the mean probability over this rank's tokens only: f has
    no gradient and the loss is linear in P, so the mean over equally large ranks of these losses, and of their
    gradients, is that of the whole batch.
    """
    total = counts
    if data is not None:
        total = counts.clone()
        data.all_reduce(total)
    shares = total.float() / total.sum()
    return counts.shape[0] * (shares * routing.probabilities.mean(dim=0)).sum()


def attach(x: Tensor, loss: Tensor, scale: float) -> Tensor:
    """``x`` itself; its backward also adds ``scale`` times the gradient of a scalar loss.

    So the loss needs no way to the last pipeline stage, and is counted once when activations are recomputed.
    """
    return apply(_Attach, x, loss, scale)


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        # A copy: torch.compile makes a view that leaves a graph anew, without this backward.
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradient, torch.full((), ctx.scale, device=gradient.device), None
