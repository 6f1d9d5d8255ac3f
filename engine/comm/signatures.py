"""How a tensor lies on the ranks of one group, and what brings it from one such signature to another.

After SBP of OneFlow (arXiv 2110.15032, section 3): split along a dimension, whole on every rank (broadcast), or
partial, where the sum over ranks is the tensor. What each transition sends at least is their table 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from engine.comm.channel import Channel


class Signature(NamedTuple):
    """``dim`` means something of a split alone."""

    kind: Literal["split", "broadcast", "partial"]
    dim: int = 0

    def __str__(self) -> str:
        """As papers write it: S(0), B, P."""
        return f"S({self.dim})" if self.kind == "split" else self.kind[0].upper()

    @property
    def of_gradient(self) -> Signature:
        """How the gradient of such a tensor lies: of a whole one each rank has a part of the sum, and the reverse."""
        return {"broadcast": PARTIAL, "partial": BROADCAST}.get(self.kind, self)


BROADCAST, PARTIAL = Signature("broadcast"), Signature("partial")


def split(dim: int) -> Signature:
    """Equal parts along a dimension, in the order of ranks."""
    return Signature("split", dim)


def box(x: Tensor, source: Signature, target: Signature, channel: Channel) -> Tensor:
    """This rank's part of a tensor under ``target``, of what it has under ``source``; all ranks of the group call it.

    Dimensions that are split have to be multiples of the group's size. The result may be ``x`` itself, or a view of it.
    """
    if source == target:
        return x
    if target == PARTIAL:
        return _as_partial(x, source, channel)
    if source == BROADCAST:
        return x.chunk(channel.size, target.dim)[channel.rank]
    if source == PARTIAL and target == BROADCAST:
        whole = x.clone(memory_format=torch.contiguous_format)
        channel.all_reduce(whole)
        return whole
    if source == PARTIAL:
        return _along(target.dim, channel.reduce_scatter, x)
    if target == BROADCAST:
        return _along(source.dim, channel.all_gather, x)
    return _turned(x, source.dim, target.dim, channel)


def bytes_between(source: Signature, target: Signature, whole_bytes: float, ranks: int) -> float:
    """What all ranks of a group send together, at least: table 2 of arXiv 2110.15032, same devices.

    ``whole_bytes`` are those of the undivided tensor.
    """
    if source in (target, BROADCAST) or target == PARTIAL:
        return 0.0
    if source == PARTIAL:
        return (2 if target == BROADCAST else 1) * (ranks - 1) * whole_bytes
    return (ranks - 1) * whole_bytes / (1 if target == BROADCAST else ranks)


def bytes_across(
    source: Signature, target: Signature, whole_bytes: float, senders: int, receivers: int
) -> float:
    """The same from the ranks of one group to those of another that shares none with it."""
    if source == PARTIAL and target == BROADCAST:
        return (senders + receivers - 1) * whole_bytes
    if source == PARTIAL:
        return senders * whole_bytes
    return (receivers if target == BROADCAST else 1) * whole_bytes


def _as_partial(x: Tensor, source: Signature, channel: Channel) -> Tensor:
    """Of a whole tensor rank 0 has all and others nothing; a part lies in zeros. Nothing is sent."""
    if source == BROADCAST:
        return x if channel.rank == 0 else torch.zeros_like(x)
    parts = [torch.zeros_like(x)] * channel.size
    parts[channel.rank] = x
    return torch.cat(parts, source.dim)


def _along(dim: int, call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A collective that splits or joins the first dimension, along another one."""
    return call(x) if dim == 0 else call(x.movedim(dim, 0)).movedim(0, dim)


def _turned(x: Tensor, source: int, target: int, channel: Channel) -> Tensor:
    """Split along ``source`` -> along ``target``: every rank sends every other one the part that it needs."""
    parts = x.unflatten(target, (channel.size, -1)).movedim(target, 0)  # by the rank it goes to
    received = channel.all_to_all(parts)  # by the rank it comes from
    whole: Tensor = received.movedim(0, source).flatten(source, source + 1)
    return whole
