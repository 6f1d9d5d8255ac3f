"""Expert parallelism (arXiv 2006.16668): ranks with different tokens hold different experts and exchange rows.

Sent per layer and micro-batch: rows to their experts and results back in forward, and the gradients of both in
backward, each an all-to-all. Without a capacity the sizes are uneven and a small all-to-all tells them first. Rows
may travel in bf16, or in int8 with a scale for each row.

Where ranks lie on islands, rows may go in two stages (arXiv 2205.10034): inside of the island to the rank with their
destination's place, then from there to the same place on its island. Of p ranks each, two islands exchange p messages
instead of p^2, with as many bytes in all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.comm import host_values
from engine.comm.channel import Channel
from engine.config.formulas.expert_rows import SCALE_BYTES, Format
from engine.model.axes import Compute, GroupAxis
from engine.model.linear import apply

_LEVELS = 127


class Route(Protocol):
    """How rows go from rank to rank; what comes arrives in the order of the ranks that it is from."""

    def dispatch(self, rows: Tensor) -> Tensor:
        """Rows in the order of the ranks that they are for -> what comes from all ranks."""

    def combine(self, rows: Tensor) -> Tensor:
        """The same the other way, where as many rows return."""


@dataclass(frozen=True, slots=True)
class DirectRoute:
    """One all-to-all; without sizes every rank gets as many rows."""

    channel: Channel
    send: list[int] | None = None
    receive: list[int] | None = None

    def dispatch(self, rows: Tensor) -> Tensor:
        return self.channel.all_to_all(rows, self.send, self.receive)

    def combine(self, rows: Tensor) -> Tensor:
        return self.channel.all_to_all(rows, self.receive, self.send)


@dataclass(frozen=True, slots=True)
class SortedRoute:
    """An all-to-all of rows that are put in another order first."""

    order: Tensor | None
    hop: DirectRoute

    def dispatch(self, rows: Tensor) -> Tensor:
        return self.hop.dispatch(rows if self.order is None else rows.index_select(0, self.order))

    def combine(self, rows: Tensor) -> Tensor:
        arrived = self.hop.combine(rows)
        return (
            arrived if self.order is None else torch.empty_like(arrived).index_copy_(0, self.order, arrived)
        )


@dataclass(frozen=True, slots=True)
class TwoStageRoute:
    """Inside of an island, then between islands; back by the same ranks."""

    inside: SortedRoute
    between: SortedRoute

    def dispatch(self, rows: Tensor) -> Tensor:
        return self.between.dispatch(self.inside.dispatch(rows))

    def combine(self, rows: Tensor) -> Tensor:
        return self.inside.combine(self.between.combine(rows))


@dataclass(frozen=True, slots=True)
class Islands:
    """The ranks of ep on this rank's island, and those with its place on each of them; a rank's number on the axis is
    island * ranks of one + place.
    """

    inside: Channel
    between: Channel

    def exchange_counts(self, counts: Tensor) -> tuple[Tensor, TwoStageRoute, int]:
        """Rows for each expert [experts] -> those that come [ep, experts / ep], their way, and how many they are.

        What is told on the way is what the next message has to be as long as: of each island's rank with this place.
        """
        islands, places = self.between.size, self.inside.size
        wanted = counts.view(islands, places, -1)
        relayed = self.inside.all_to_all(wanted.transpose(0, 1).contiguous()).view(places, islands, -1)
        onward = relayed.transpose(0, 1).contiguous()
        received = self.between.all_to_all(onward).view(islands, places, -1)
        first, second = wanted.sum(dim=2), relayed.sum(dim=2)
        sizes = [first.sum(dim=0), second.sum(dim=1), second.sum(dim=0), received.sum(dim=(1, 2))]
        counts_of_ranks = host_values.numbers(torch.cat(sizes))
        to_place, from_place = counts_of_ranks[:places], counts_of_ranks[places : 2 * places]
        to_island, from_island = (
            counts_of_ranks[2 * places : 2 * places + islands],
            counts_of_ranks[2 * places + islands :],
        )
        route = TwoStageRoute(
            SortedRoute(
                _transpose_order(first, sum(to_place)), DirectRoute(self.inside, to_place, from_place)
            ),
            SortedRoute(
                _transpose_order(second, sum(from_place)), DirectRoute(self.between, to_island, from_island)
            ),
        )
        return received.flatten(0, 1), route, sum(from_island)

    def even(self, rows: int, device: torch.device) -> TwoStageRoute:
        """The way of as many rows for each rank."""
        islands, places = self.between.size, self.inside.size
        numbers = torch.arange(rows, device=device)
        return TwoStageRoute(
            SortedRoute(
                numbers.view(islands, places, -1).transpose(0, 1).flatten(), DirectRoute(self.inside)
            ),
            SortedRoute(
                numbers.view(places, islands, -1).transpose(0, 1).flatten(), DirectRoute(self.between)
            ),
        )


@dataclass(frozen=True, slots=True)
class ExpertParallel(GroupAxis):
    """This rank's place on the ep axis; ``sends`` is the format in which rows and their gradients travel. With
    ``islands`` they go in two stages.
    """

    sends: Format = "none"
    islands: Islands | None = None

    def run_sorted(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        """Rows [rows, hidden] sorted by expert, ``counts`` int64 [experts] of each -> results in the same order.

        Waits for the counts: the host has to know the sizes of what it sends and receives.
        """
        received, route, count = self._meet(counts)
        order = _transpose_order(received, count) if received.shape[1] > 1 else None
        arrived = _permute(apply(_SendRows, rows, route, self.sends), order)
        results = compute(arrived, received.sum(dim=0))
        return apply(_ReturnRows, _permute(results, _inverse(order)), route, self.sends)

    def run_padded(self, slots: Tensor, compute: Compute) -> Tensor:
        """Slots [experts, capacity, hidden] -> results in the same places; no size depends on the routing."""
        rows = slots.flatten(0, 1)
        direct = self.islands is None
        route: Route = DirectRoute(self.channel) if direct else self.islands.even(len(rows), rows.device)  # type: ignore[union-attr]
        arrived = apply(_SendRows, rows, route, self.sends).view(self.size, -1, *slots.shape[1:])
        results = compute(arrived.transpose(0, 1).flatten(1, 2), None)
        back = results.unflatten(1, (self.size, -1)).transpose(0, 1).flatten(0, 2)
        return apply(_ReturnRows, back, route, self.sends).view_as(slots)

    def _meet(self, counts: Tensor) -> tuple[Tensor, Route, int]:
        """Rows for each expert [experts] -> those that come [ep, experts / ep], their way, and how many they are."""
        if self.islands is not None:
            return self.islands.exchange_counts(counts)
        received = self.channel.all_to_all(counts).view(self.size, -1)
        sizes = host_values.numbers(torch.stack((counts.view(self.size, -1).sum(dim=1), received.sum(dim=1))))
        send, receive = sizes
        return received, DirectRoute(self.channel, send, receive), sum(receive)


def _transpose_order(blocks: Tensor, rows: int) -> Tensor:
    """Order of rows by second index that lie by first index; ``blocks`` [a, b] has how many there are of each."""
    numbers = torch.arange(blocks.shape[1], device=blocks.device).repeat(blocks.shape[0])
    return numbers.repeat_interleave(blocks.flatten(), output_size=rows).argsort(stable=True)


class _SendRows(torch.autograd.Function):
    """Rows go by a route; their gradients come back by it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, route: Route, sends: Format) -> Tensor:
        ctx.route, ctx.sends = route, sends
        return _carry_rows(rows, route.dispatch, sends)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _carry_rows(gradient, ctx.route.combine, ctx.sends), None, None


class _ReturnRows(torch.autograd.Function):
    """The reverse."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, route: Route, sends: Format) -> Tensor:
        ctx.route, ctx.sends = route, sends
        return _carry_rows(rows, route.combine, sends)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _carry_rows(gradient, ctx.route.dispatch, ctx.sends), None, None


def _carry_rows(rows: Tensor, way: Callable[[Tensor], Tensor], sends: Format) -> Tensor:
    """Rows [n, width] in the format in which they travel, and as they were again."""
    rows = rows.contiguous()
    return way(rows) if sends == "none" else _whole(way(_coarse(rows, sends)), sends, rows.dtype)


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
    message = torch.empty((len(rows), rows.shape[1] + SCALE_BYTES), dtype=torch.uint8, device=rows.device)
    message[:, :-SCALE_BYTES] = (wide / scales).round_().to(torch.int8).view(torch.uint8)
    message[:, -SCALE_BYTES:] = scales.view(torch.uint8)
    return message


def _whole(message: Tensor, format_: Format, dtype: torch.dtype) -> Tensor:
    """The rows [n, width] that a message tells of."""
    if format_ == "bf16":
        return message.to(dtype)
    scales = message[:, -SCALE_BYTES:].contiguous().view(torch.float32)
    return (message[:, :-SCALE_BYTES].view(torch.int8) * scales).to(dtype)
