"""Collectives on gloo by one exchange among all ranks, where that beats gloo's own (``benchmarks/collectives.py``).

gloo gathers and reduces around a ring, so a tensor of few bytes takes as long as the ring's messages one after the
other; and its reduce-scatter reduces everything on every rank, which sends twice what is needed. In an exchange
every rank sends its part to every other at once and adds up what it gets, in the order of ranks: all ranks then hold
the same bits. And gloo's reduce-scatter has no future: nobody can tell when one that runs beside computation ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from engine import pairwise
from profilers.steps.wait_sampler import waits_here

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
        return self._backend.alltoall_base(out, self._repeated(x), [], [], self._options)

    def reduce_scatter(self, out: Tensor, x: Tensor, operation: Any) -> _Reduced:
        """This rank's part [n] of the reduced ``x`` [size * n] into ``out``."""
        parts = torch.empty_like(x)
        if x.nbytes >= self._size * pairwise.LARGE:
            work: Any = pairwise.start(self._backend, parts, x)
        else:
            work = self._backend.alltoall_base(parts, x, [], [], self._options)
        return _Reduced(work, parts.view(self._size, *out.shape), out, operation)

    def start_reduce_scatter(
        self, out: Tensor, x: Tensor, operation: Any, ended: Callable[[], None]
    ) -> torch.futures.Future[None]:
        """The same beside computation: one of gloo's threads reduces when the parts are there, then calls ``ended``.

        Its ``wait()`` raises RuntimeError if the exchange failed; then nothing was reduced.
        """
        parts = torch.empty_like(x)
        work = self._backend.alltoall_base(parts, x, [], [], self._later)

        def reduce(done: torch.futures.Future[Any]) -> None:
            done.value()
            reduce_parts(parts.view(self._size, *out.shape), out, operation)
            ended()

        future: torch.futures.Future[None] = work.get_future().then(reduce)
        return future

    def all_reduce(self, x: Tensor, operation: Any) -> _Reduced:
        """In place."""
        parts = x.new_empty((self._size, *x.shape))
        work = self._backend.alltoall_base(parts.view(-1), self._repeated(x), [], [], self._options)
        return _Reduced(work, parts, x, operation)

    def _repeated(self, x: Tensor) -> Tensor:
        return x.expand(self._size, *x.shape).contiguous().view(-1)


class _Reduced:
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
