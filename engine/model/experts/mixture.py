"""A mixture of SwiGLU experts in place of a block's feed-forward: a token passes through its ``top_k`` best.

Experts are split over ep along their number and over tp along their width. Every tp rank sees the same tokens
and routes them alike, so tp adds no messages of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from engine.comm.channel import Channel
from engine.model.axes import ExpertAxis, TensorAxis
from engine.model.experts.dispatch import (
    Placement,
    batched_linear,
    combine,
    count,
    grouped_linear,
    place_padded,
    place_sorted,
    spread_tokens,
)
from engine.model.experts.row_buckets import RowBuckets
from engine.model.experts.slots import ExpertSlots
from engine.model.linear import apply


@dataclass(frozen=True, slots=True)
class Routing:
    """The decision for [tokens]: softmax over experts, the ``top_k`` experts best first, and their weights."""

    probabilities: Tensor  #: fp32 [tokens, experts]
    experts: Tensor  #: int64 [tokens, top_k]
    weights: Tensor  #: fp32 [tokens, top_k]

    def counts(self) -> Tensor:
        """Choices that fall on each expert, int64 [experts]."""
        return count(self.experts.flatten(), self.probabilities.shape[1])

    def first(self, tokens: int) -> Routing:
        """Of so many tokens."""
        return Routing(self.probabilities[:tokens], self.experts[:tokens], self.weights[:tokens])


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


class Text(NamedTuple):
    """Of a rank's tokens in a micro-batch the first ``tokens``, before padding; a rank has ``mean`` of them in a step,
    over all ranks and micro-batches.
    """

    tokens: int
    mean: float


def balance_loss(routing: Routing, counts: Tensor, data: Channel | None, mean: float | None = None) -> Tensor:
    """experts * sum_e f_e * P_e (arXiv 2101.03961, eq. 4-6, without its weight); 1 when evenly loaded.

    f_e is the share of all choices that fall on expert e, from ``counts`` int64 [experts] summed over the data
    ranks (one all-reduce of 8 bytes an expert). P_e is the mean probability over this rank's tokens only: f has
    no gradient and the loss is linear in P, so the mean over equally large ranks of these losses, and of their
    gradients, is that of the whole batch. Where ranks and micro-batches have unequal numbers of tokens P_e is the sum
    over this rank's, divided by the ``mean`` of a rank and step: the mean over ranks of all micro-batches' losses is
    that of the step, each micro-batch weighing as much as it has tokens.
    """
    total = counts
    if data is not None:
        total = counts.clone()
        data.all_reduce(total)
    shares = total.float() / total.sum()
    probability = routing.probabilities.sum(dim=0) / (mean or len(routing.probabilities))
    return counts.shape[0] * (shares * probability).sum()


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


_INIT_STD = 0.02


@dataclass(frozen=True, slots=True)
class MixtureShape:
    """Sizes of a mixture; ``ffn_hidden`` is one expert's width. Without a capacity factor no token is dropped."""

    hidden: int
    ffn_hidden: int
    experts: int
    top_k: int = 2
    capacity_factor: float | None = None
    balance_weight: float = 0.01

    def capacity(self, tokens: int) -> int | None:
        """Slots for these tokens at each expert: ceil(factor * tokens * top_k / experts) (arXiv 2006.16668,
        section 2.2), and never more than there are tokens; None where nothing is dropped.
        """
        if self.capacity_factor is None:
            return None
        # Rounded first: 1.1 * 10 is a little more than 11 in floating point.
        slots = round(self.capacity_factor * tokens * self.top_k / self.experts, 9)
        return min(math.ceil(slots), tokens)


@dataclass(frozen=True, slots=True)
class MixtureReport:
    """What a forward pass did with this rank's tokens; tensors, so that reading them may wait.

    ``balance_loss`` carries its weight; its mean over the data ranks is the whole batch's. None in evaluation and
    with weight 0. ``tokens_per_expert`` int64 [experts] counts choices before any is dropped; ``dropped_per_expert``
    those of them that found no slot, None without a capacity. ``probability`` fp32 [experts] is the router's mean.
    ``bucketed`` fp64 [2, experts] are the rows that were sent for them, and the sum of the relative distances of the
    others from these; None where all are sent as they are.
    """

    balance_loss: Tensor | None
    tokens_per_expert: Tensor
    dropped_per_expert: Tensor | None
    probability: Tensor
    bucketed: Tensor | None = None

    @property
    def dropped_share(self) -> Tensor | None:
        """Share of all choices that found no slot, fp32 scalar; None without a capacity."""
        if self.dropped_per_expert is None:
            return None
        return self.dropped_per_expert.sum().float() / self.tokens_per_expert.sum()


class ExpertLoad:
    """The sums of a mixture's reports while it is ``on``: float64 [3, experts] of choices, of dropped ones, and of
    mean probabilities times the choices that all experts had, for micro-batches may differ in tokens; [5, experts] with
    what was ``bucketed``.
    """

    def __init__(self) -> None:
        self.on = False
        self._sums: Tensor | None = None

    def add(self, report: MixtureReport) -> None:
        """A micro-batch of training."""
        if not self.on:
            return
        dropped = report.dropped_per_expert
        none = torch.zeros_like(report.tokens_per_expert) if dropped is None else dropped
        choices = report.tokens_per_expert.double()
        parts = torch.stack([choices, none.double(), report.probability.double() * choices.sum()])
        if report.bucketed is not None:
            parts = torch.cat((parts, report.bucketed))
        self._sums = parts if self._sums is None else self._sums + parts

    def take(self) -> Tensor | None:
        """The sums since the last call; None where there was no report."""
        sums, self._sums = self._sums, None
        return sums


class ExpertLinear(nn.Module):
    """The matrices [experts / ep, out, in] of this rank's experts, each split over tp along ``tp_dim``, 1 or 2."""

    expert_dim = 0

    def __init__(self, shape: tuple[int, int, int], tp: TensorAxis, experts: ExpertAxis, tp_dim: int) -> None:
        super().__init__()
        self.tp_dim = tp_dim
        local = [shape[0] // experts.size, *shape[1:]]
        local[tp_dim] //= tp.size
        self.weight = nn.Parameter(torch.empty(local))

    def forward(self, x: Tensor, counts: Tensor | None) -> Tensor:
        """[rows, in] sorted by expert with the rows of each, or [experts / ep, rows, in] -> the same with out."""
        return batched_linear(x, self.weight) if counts is None else grouped_linear(x, self.weight, counts)


class Mixture(nn.Module):
    """Router and experts on [sequence, batch, hidden]; the result is partial over tp like a feed-forward's.

    ``data`` are the ranks over whose tokens experts are balanced: those of a micro-batch. Set ``balance_scale`` to 1 /
    micro-batches of the step, or ``text`` where ranks have unequal numbers of tokens. ``token_groups`` int64 [sequence,
    batch] lets one process drop tokens as several ranks would, each number standing for a rank and all of them equally
    large (the groups of arXiv 2006.16668).
    """

    def __init__(
        self, shape: MixtureShape, tp: TensorAxis, experts: ExpertAxis, data: Channel | None = None
    ) -> None:
        super().__init__()
        self.shape, self.tp, self.axis, self.data = shape, tp, experts, data
        self.balance_scale = 1.0
        self.text: Text | None = None
        self.token_groups: Tensor | None = None
        self.report: MixtureReport | None = None
        self.load = ExpertLoad()
        #: Where its experts are while they are used, if they lie elsewhere; and its number in the model.
        self.slots: ExpertSlots | None = None
        self.layer = 0
        #: Rows that are alike travel as one.
        self.buckets: RowBuckets | None = None
        self.router = Router(shape.experts, shape.hidden, shape.top_k)
        wide, narrow = (
            (shape.experts, shape.ffn_hidden, shape.hidden),
            (shape.experts, shape.hidden, shape.ffn_hidden),
        )
        self.gate = ExpertLinear(wide, tp, experts, 1)
        self.up = ExpertLinear(wide, tp, experts, 1)
        self.down = ExpertLinear(narrow, tp, experts, 2)

    def forward(self, x: Tensor) -> Tensor:
        """[sequence, batch, hidden] -> partial sums of the same shape and dtype."""
        tokens = x.flatten(0, 1)
        routing = self.router(tokens)
        counts = routing.counts()
        text = routing if self.text is None else routing.first(self.text.tokens)
        counted = counts if self.text is None else text.counts()
        weights, loss = self._balance(routing.weights, text, counted)
        placement, results = self._dispatch(tokens, routing, counts)
        dropped = None if placement.is_full else counts - placement.filled_slots(self.shape.experts)
        bucketed = None if self.buckets is None else self.buckets.last
        probability = text.probabilities.detach().sum(dim=0) / max(1, len(text.probabilities))
        self.report = MixtureReport(loss, counted, dropped, probability, bucketed)
        return combine(results, weights, placement).view_as(x)

    def _balance(self, weights: Tensor, text: Routing, counts: Tensor) -> tuple[Tensor, Tensor | None]:
        """The weights of all tokens. Every tp rank brings its part of the router's gradient, and of the loss's: 1 / tp
        each.
        """
        if not self.shape.balance_weight or not torch.is_grad_enabled():
            return weights, None
        mean, scale = (None, self.balance_scale) if self.text is None else (self.text.mean, 1.0)
        loss = self.shape.balance_weight * balance_loss(text, counts, self.data, mean)
        return attach(weights, loss, scale / self.tp.size), loss.detach()

    def _dispatch(self, tokens: Tensor, routing: Routing, counts: Tensor) -> tuple[Placement, Tensor]:
        """Placement and results [slots, hidden]."""
        groups = None if self.token_groups is None else self.token_groups.flatten()
        ranks = 1 if groups is None else int(groups.max()) + 1
        capacity = self.shape.capacity(tokens.shape[0] // ranks)
        if capacity is None:
            placement = place_sorted(routing.experts)
            return placement, self._run_sorted(spread_tokens(tokens, placement), counts)
        placement = place_padded(routing.experts, self.shape.experts, capacity, groups)
        slots = spread_tokens(tokens, placement).unflatten(0, (self.shape.experts, -1))
        return placement, self.axis.run_padded(slots, self._experts).flatten(0, 1)

    def _run_sorted(self, rows: Tensor, counts: Tensor) -> Tensor:
        def exchange(rows: Tensor, counts: Tensor) -> Tensor:
            return self.axis.run_sorted(rows, counts, self._experts)

        # Training alone: what is learned is judged without what is lost on the way.
        if self.buckets is None or not torch.is_grad_enabled():
            return exchange(rows, counts)
        return self.buckets.run(rows, counts, exchange, self.load.on)

    def keep_in(self, slots: ExpertSlots, layer: int) -> None:
        """From now on its experts lie at their home, and are used in slots."""
        self.slots, self.layer = slots, layer
        slots.adopt(layer, self._weights())

    def _weights(self) -> list[nn.Parameter]:
        return [self.gate.weight, self.up.weight, self.down.weight]

    def _experts(self, x: Tensor, counts: Tensor | None) -> Tensor:
        if self.slots is not None:
            return self.slots.run(self.layer, x, counts, self._weights())
        out: Tensor = self.down(F.silu(self.gate(x, counts)) * self.up(x, counts), counts)
        return out


def initialize_mixture(mixture: Mixture, name: str, seed: int) -> None:
    """Fill parameters from the module's full name, each expert's number and the seed alone, whatever the layout."""
    with torch.no_grad():
        router = mixture.router.weight
        router.copy_(initial_values(f"{name}.router", tuple(router.shape), seed))
        for part in ("gate", "up", "down"):
            _initialize_experts(mixture, part, f"{name}.{part}", seed)


def _initialize_experts(mixture: Mixture, part: str, name: str, seed: int) -> None:
    matrices: ExpertLinear = getattr(mixture, part)
    dim, weight = matrices.tp_dim - 1, matrices.weight
    full = list(weight.shape[1:])
    full[dim] *= mixture.tp.size
    for place, matrix in enumerate(weight.unbind(0)):
        number = mixture.axis.rank * weight.shape[0] + place
        matrix.copy_(mixture.tp.shard(initial_values(f"{name}.{number}", tuple(full), seed), dim))


def initial_values(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Normal numbers of a full parameter, from its name and the seed alone."""
    generator = torch.Generator().manual_seed(name_seed(name, seed))
    return torch.empty(shape).normal_(0.0, _INIT_STD, generator=generator)


def name_seed(name: str, seed: int) -> int:
    """Of a parameter's numbers."""
    value = seed + 1
    for character in name:
        value = (value * 1_000_003 ^ ord(character)) & 0x7FFFFFFFFFFFFFFF
    return value
