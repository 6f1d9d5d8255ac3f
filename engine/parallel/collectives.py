"""Collectives as functions of autograd: the gradient of each travels the other way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.comm.boxing import box
from engine.comm.channel import Channel
from engine.comm.signatures import Signature
from engine.model.linear import apply


def redistribute(x: Tensor, source: Signature, target: Signature, channel: Channel) -> Tensor:
    """``box`` of a tensor; its gradient goes from the target's signature for gradients back to the source's."""
    return apply(_Redistribute, x, source, target, channel)


def all_to_all(x: Tensor, channel: Channel) -> Tensor:
    """As many rows to each of the ranks in order, and theirs in return; so does its gradient."""
    return apply(_AllToAll, x, channel)


class _Redistribute(torch.autograd.Function):
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
    def forward(ctx: Any, x: Tensor, channel: Channel) -> Tensor:
        ctx.channel = channel
        return channel.all_to_all(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.channel.all_to_all(gradient), None
