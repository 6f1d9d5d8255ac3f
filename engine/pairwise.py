"""An all-to-all by messages between pairs of ranks, for gloo over links that are slow.

gloo's own posts each message before it says that it is ready for the one that comes the other way. That note travels
on the same connection, behind the message: of two opposing ones the second begins where the first ends, and all takes
twice as long as both directions of a link allow. Here a rank is ready for all messages before it sends any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from profilers.collectives.recorder import active_recorder
from profilers.steps.timer import Issued
from profilers.steps.wait_sampler import waits_here

#: Bytes to one rank from which on the order of messages counts for more than the number of calls.
LARGE = 1 << 15
_TAG = 0


class Messages:
    """Messages under way in both directions, and their record; they keep what they read and write."""

    __slots__ = ("_call", "_kept", "_works")

    def __init__(self, works: list[Any], kept: tuple[Tensor, Tensor], call: Issued | None = None) -> None:
        self._works, self._kept, self._call = works, kept, call

    @waits_here
    def wait(self) -> None:
        """Return when all are through. RuntimeError if one failed."""
        for work in self._works:
            work.wait()
        recorder = active_recorder()
        if self._call is not None and recorder is not None:
            recorder.finish(self._call)


def start(
    backend: Any,
    out: Tensor,
    x: Tensor,
    receive: Sequence[int] = (),
    send: Sequence[int] = (),
    call: Issued | None = None,
) -> Messages:
    """Rows of a contiguous ``x`` to the ranks in order, and theirs into a contiguous ``out``; as many as the lists say,
    or equal parts. No message has no rows.
    """
    rank, size = backend.rank(), backend.size()
    arriving, leaving = (_parts(whole, rows, size) for whole, rows in ((out, receive), (x, send)))
    arriving[rank].copy_(leaving[rank])
    ahead = [(rank + step) % size for step in range(1, size)]
    works = [backend.recv([arriving[peer]], peer, _TAG) for peer in reversed(ahead) if arriving[peer].numel()]
    works += [backend.send([leaving[peer]], peer, _TAG) for peer in ahead if leaving[peer].numel()]
    return Messages(works, (out, x), call)


def _parts(whole: Tensor, rows: Sequence[int], size: int) -> tuple[Tensor, ...]:
    return whole.split(list(rows)) if rows else whole.chunk(size)
