"""Tensors from one signature to another, over a channel."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.comm.channel import Channel
from engine.comm.signatures import PARTIAL, REPLICATED, Signature


def box(x: Tensor, source: Signature, target: Signature, channel: Channel) -> Tensor:
    """This rank's part of a tensor under ``target``, of what it has under ``source``; all ranks of the group call it.

    Dimensions that are split have to be multiples of the group's size. The result may be ``x`` itself, or a view of it.
    """
    if source == target:
        return x
    if target == PARTIAL:
        return _as_partial(x, source, channel)
    if source == REPLICATED:
        return x.chunk(channel.size, target.dim)[channel.rank]
    if source == PARTIAL and target == REPLICATED:
        whole = x.clone(memory_format=torch.contiguous_format)
        channel.all_reduce(whole)
        return whole
    if source == PARTIAL:
        return _apply_to_dim(target.dim, channel.reduce_scatter, x)
    if target == REPLICATED:
        return _apply_to_dim(source.dim, channel.all_gather, x)
    return _change_split(x, source.dim, target.dim, channel)


def _as_partial(x: Tensor, source: Signature, channel: Channel) -> Tensor:
    """Of a whole tensor rank 0 has all and others nothing; a part lies in zeros. Nothing is sent."""
    if source == REPLICATED:
        return x if channel.rank == 0 else torch.zeros_like(x)
    parts = [torch.zeros_like(x)] * channel.size
    parts[channel.rank] = x
    return torch.cat(parts, source.dim)


def _apply_to_dim(dim: int, call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A collective that splits or joins the first dimension, along another one."""
    return call(x) if dim == 0 else call(x.movedim(dim, 0)).movedim(0, dim)


def _change_split(x: Tensor, source: int, target: int, channel: Channel) -> Tensor:
    """Split along ``source`` -> along ``target``: every rank sends every other one the part that it needs."""
    parts = x.unflatten(target, (channel.size, -1)).movedim(target, 0)  # by the rank it goes to
    received = channel.all_to_all(parts)  # by the rank it comes from
    whole: Tensor = received.movedim(0, source).flatten(source, source + 1)
    return whole
