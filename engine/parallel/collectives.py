"""Collectives as functions of autograd: the gradient of each travels the other way."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.comm.boxing import box
from engine.comm.channel import Channel
from engine.comm.signatures import Signature
from engine.model.linear import apply


class Exchange(Protocol):
    """What carries rows between ranks: a channel, or an axis that sends them in a format of its own."""

    def all_to_all(
        self, x: Tensor, send: list[int] | None = None, receive: list[int] | None = None
    ) -> Tensor:
        """As ``Channel.all_to_all``."""


def boxed(x: Tensor, source: Signature, target: Signature, channel: Channel) -> Tensor:
    """``box`` of a tensor; its gradient goes from the target's signature for gradients back to the source's."""
    return apply(_Boxed, x, source, target, channel)


def all_to_all(
    x: Tensor, exchange: Exchange, send: list[int] | None = None, receive: list[int] | None = None
) -> Tensor:
    """Rows to the ranks in order, and theirs in return; its gradient goes back by the same exchange."""
    return apply(_AllToAll, x, exchange, send, receive)


class _Boxed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Signature, target: Signature, channel: Channel) -> Tensor:
        ctx.back = target.of_gradient, source.of_gradient, channel
        return box(x, source, target, channel)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return box(gradient, *ctx.back), None, None, None


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
