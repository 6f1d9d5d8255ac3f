"""A group as compressors use it: collectives that are waited for later, under the names and bytes of formulas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm import gloo_exchange
from engine.comm.channel import Group, Waitable, all_gather_single
from engine.compression.interface import Content, Message
from engine.compression.partition import Dealt
from engine.compression.randomness import Draws
from engine.config.compression import Settings
from profilers import torch_private
from profilers.collectives.recorder import active_recorder


class Link:
    """Each call starts one collective of the backend."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self._group, self.size, self.rank, self._device = group, group.size(), group.rank(), device

    @cached_property
    def _gloo(self) -> Any:
        """Looked up at the first call: a dry run has groups that carry no meta tensors."""
        backend = torch_private.backend_of(self._group, self._device)
        return backend if backend.name() == "gloo" else None

    def all_reduce(self, x: Tensor) -> Waitable:
        """The sum over ranks, in place."""
        work: Waitable = dist.all_reduce(x, group=self._group, async_op=True)
        return work

    def all_gather(self, out: Tensor, x: Tensor) -> Waitable:
        """``x`` [n] of every rank into ``out`` [size * n]."""
        work: Waitable = all_gather_single(out, x, group=self._group, async_op=True)
        return work

    def all_to_all(
        self, out: Tensor, x: Tensor, receive: list[int] | None = None, send: list[int] | None = None
    ) -> Waitable:
        """Parts of ``x`` to the ranks in order, and theirs into ``out``; as many elements as the lists say, or equal
        parts. ``x`` is equally long on all ranks.
        """
        if self._gloo is None or x.nbytes < self.size * gloo_exchange.LARGE:
            work: Waitable = dist.all_to_all_single(out, x, receive, send, group=self._group, async_op=True)
            return work
        recorder = active_recorder()
        call = recorder.issue("all_to_all", self._group, x) if recorder else None
        return gloo_exchange.start(self._gloo, out, x, receive or (), send or (), call)

    def reduced(self, count: int, element_bytes: int) -> Message:
        """An all-reduce of so many elements."""
        return Message("all_reduce", count * element_bytes)

    def gathered(self, bytes_: int) -> Message:
        """An all-gather of so many bytes from each rank."""
        return Message("all_gather", self.size * bytes_)

    def exchanged(self, bytes_: int) -> Message:
        """An all-to-all of so many bytes to each rank."""
        return Message("all_to_all", self.size * bytes_)


@dataclass(frozen=True, slots=True)
class MethodInput:
    """What the ``Method`` of one bucket is made of. ``factors`` by name of a part outlive buckets and settings;
    ``one_way``: a rank needs the average of its own slice of the bucket alone.
    """

    link: Link
    settings: Settings
    content: Content
    dealt: Dealt
    draws: Draws
    factors: dict[str, Tensor]
    one_way: bool
