"""The interface of gradient compression, and the plain all-reduce it replaces."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from engine.channel import Group

Future = torch.futures.Future[Tensor]


class Compressor(Protocol):
    """Averages one flat gradient bucket over a group; every rank issues its collectives in the same order."""

    def reduce(self, bucket: int, flat: Tensor) -> Future:
        """Start averaging ``flat`` (fp32 [n]) in place; the future's value is ``flat``."""

    def payload_bytes(self, elements: int) -> int:
        """Bytes handed to the collective for a bucket of this size, by formula."""

    def memory(self, bucket: int, flat: Tensor) -> Tensor | None:
        """What this rank adds to the bucket's next gradient, like ``flat``; a checkpoint saves it and loads into it."""


class Plain:
    """All-reduce of the bucket as it is."""

    def __init__(self, group: Group) -> None:
        self._group, self._size = group, group.size()

    def reduce(self, bucket: int, flat: Tensor) -> Future:
        """Average in fp32."""
        work = dist.all_reduce(flat.div_(self._size), group=self._group, async_op=True)
        return then(work, lambda: flat)

    def payload_bytes(self, elements: int) -> int:
        """Four bytes a value."""
        return 4 * elements

    def memory(self, bucket: int, flat: Tensor) -> None:
        """Nothing is left for later."""


def then(work: Any, finish: Any) -> Future:
    """A future that runs ``finish`` when the work is done; it may run on a thread of the backend.

    Waiting for it raises what the work raised; then nothing was finished.
    """

    def go_on(done: Future) -> Any:
        done.value()
        return finish()

    future: Future = work.get_future().then(go_on)
    return future
