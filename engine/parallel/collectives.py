"""Collectives as functions of autograd: the gradient of each travels the other way."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.comm.channel import Channel
from engine.model.linear import apply


class Exchange(Protocol):
    """What carries rows between ranks: a channel, or an axis that sends them in a format of its own."""

    def all_to_all(
        self, x: Tensor, send: list[int] | None = None, receive: list[int] | None = None
    ) -> Tensor:
        """As ``Channel.all_to_all``."""


def all_gather(x: Tensor, channel: Channel) -> Tensor:
    """[n, ...] of every rank -> [size * n, ...]; its gradient is reduced and scattered."""
    return apply(_AllGather, x, channel)


def reduce_scatter(x: Tensor, channel: Channel) -> Tensor:
    """[size * n, ...] -> this rank's part [n, ...] of the sum; its gradient is gathered."""
    return apply(_ReduceScatter, x, channel)


def all_to_all(
    x: Tensor, exchange: Exchange, send: list[int] | None = None, receive: list[int] | None = None
) -> Tensor:
    """Rows to the ranks in order, and theirs in return; its gradient goes back by the same exchange."""
    return apply(_AllToAll, x, exchange, send, receive)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, channel: Channel) -> Tensor:
        ctx.channel = channel
        return channel.all_gather(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.channel.reduce_scatter(gradient), None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, channel: Channel) -> Tensor:
        ctx.channel = channel
        return channel.reduce_scatter(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.channel.all_gather(gradient), None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, exchange: Exchange, send: list[int] | None, receive: list[int] | None
    ) -> Tensor:
        ctx.exchange, ctx.send, ctx.receive = exchange, send, receive
        return exchange.all_to_all(x, send, receive)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.exchange.all_to_all(gradient, ctx.receive, ctx.send), None, None, None
