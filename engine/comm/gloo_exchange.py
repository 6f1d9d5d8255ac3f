"""Collectives on gloo by one exchange among all ranks, where that beats gloo's own (``benchmarks/collectives.py``).

gloo gathers and reduces around a ring, so a tensor of few bytes takes as long as the ring's messages one after the
other; and its reduce-scatter reduces everything on every rank, which sends twice what is needed. In an exchange every
rank sends its part to every other at once and adds up what it gets, in the order of ranks: all ranks then hold the
same bits. gloo's reduce-scatter also has no future: nobody can tell when one that runs beside computation ended.

The all-to-all by messages between pairs of ranks is for slow links. gloo's own posts each message before it says that
it is ready for the one that comes the other way. That note travels on the same connection, behind the message: of two
opposing messages the second begins where the first ends, so both take twice as long as the link allows. Here a rank
is ready for all messages before it sends any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from profilers.collectives.recorder import active_recorder
from profilers.steps.timer import IssuedCall
from profilers.steps.wait_sampler import waits_here

#: Bytes to one rank from which on the order of messages counts for more than the number of calls.
LARGE = 1 << 15
_TAG = 0


class Messages:
    """Messages under way in both directions, and their record; they keep what they read and write."""

    __slots__ = ("_call", "_kept", "_works")

    def __init__(
        self, works: list[Any], buffers: tuple[Tensor, Tensor], call: IssuedCall | None = None
    ) -> None:
        self._works, self._kept, self._call = works, buffers, call

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
    call: IssuedCall | None = None,
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


#: Bytes that a rank may send before a ring's even load counts for more than its number of messages.
SMALL = 1 << 16

_SUM, _AVERAGE, _MAX = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX


class Exchange:
    """One group's backend; a method does what the backend's own does, and its result waits like the backend's."""

    def __init__(self, backend: Any, size: int) -> None:
        self._backend, self._size = backend, size
        self._options, self._later = c10d.AllToAllOptions(), c10d.AllToAllOptions()
        self._options.asyncOp, self._later.asyncOp = False, True

    def gathers(self, x: Tensor) -> bool:
        """Whether to gather [n] this way; two ranks have only one message in either."""
        return self._size > 2 and self._size * x.nbytes <= SMALL

    def reduces(self, x: Tensor) -> bool:
        """Whether to all-reduce a tensor this way."""
        return self._size * x.nbytes <= SMALL

    def all_gather(self, out: Tensor, x: Tensor) -> Any:
        """[n] of every rank into ``out`` [size * n]."""
        return self._backend.alltoall_base(out, self._repeat_for_ranks(x), [], [], self._options)

    def reduce_scatter(self, out: Tensor, x: Tensor, operation: Any) -> _PendingReduction:
        """This rank's part [n] of the reduced ``x`` [size * n] into ``out``."""
        parts = torch.empty_like(x)
        if x.nbytes >= self._size * LARGE:
            work: Any = start(self._backend, parts, x)
        else:
            work = self._backend.alltoall_base(parts, x, [], [], self._options)
        return _PendingReduction(work, parts.view(self._size, *out.shape), out, operation)

    def start_reduce_scatter(
        self, out: Tensor, x: Tensor, operation: Any, ended: Callable[[], None]
    ) -> torch.futures.Future[None]:
        """``reduce_scatter`` beside computation: a thread of gloo's reduces when the parts are there, then calls
        ``ended``.

        Its ``wait()`` raises RuntimeError if the exchange failed; then nothing was reduced.
        """
        parts = torch.empty_like(x)
        work = self._backend.alltoall_base(parts, x, [], [], self._later)

        def reduce(future: torch.futures.Future[Any]) -> None:
            future.value()
            reduce_parts(parts.view(self._size, *out.shape), out, operation)
            ended()

        future: torch.futures.Future[None] = work.get_future().then(reduce)
        return future

    def all_reduce(self, x: Tensor, operation: Any) -> _PendingReduction:
        """Reduce ``x`` over the ranks in place."""
        parts = x.new_empty((self._size, *x.shape))
        work = self._backend.alltoall_base(parts.view(-1), self._repeat_for_ranks(x), [], [], self._options)
        return _PendingReduction(work, parts, x, operation)

    def _repeat_for_ranks(self, x: Tensor) -> Tensor:
        return x.expand(self._size, *x.shape).contiguous().view(-1)


class _PendingReduction:
    """Work whose parts [ranks, ...] are reduced into ``out`` when they are there."""

    __slots__ = ("_operation", "_out", "_parts", "_work")

    def __init__(self, work: Any, parts: Tensor, out: Tensor, operation: Any) -> None:
        self._work, self._parts, self._out, self._operation = work, parts, out, operation

    @waits_here
    def wait(self) -> None:
        """Wait and reduce."""
        self._work.wait()
        reduce_parts(self._parts, self._out, self._operation)


def can_reduce(operation: Any) -> bool:
    """Whether ``reduce_parts`` knows an operation of torch.distributed."""
    return operation in (_SUM, _AVERAGE, _MAX)


def reduce_parts(parts: Tensor, out: Tensor, operation: Any) -> None:
    """Reduce [ranks, ...] into ``out`` [...], in the order of ranks."""
    if operation == _MAX:
        torch.amax(parts, dim=0, out=out)
    else:
        torch.sum(parts, dim=0, dtype=out.dtype, out=out)
    if operation == _AVERAGE:
        out.div_(len(parts))
