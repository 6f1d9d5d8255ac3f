"""Calls among ranks that hold the same part of different replicas, which may go on over many steps.

The group belongs to local SGD alone, and every rank starts the same calls on it in the same order; between two of
them ranks may do whatever they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm import host_values
from engine.comm.channel import (
    Group,
    all_gather_single,
    gather_call,
    reduce_call,
    reduce_scatter_single,
    scatter_call,
)
from engine.comm.gloo_exchange import Exchange
from profilers import torch_private
from profilers.collectives.recorder import OperatorCall, active_recorder, pause_recording
from profilers.collectives.wire_bytes import EXCHANGE
from profilers.steps.timer import IssuedCall, StepTimer
from profilers.steps.wait_sampler import waits_here

Start = Callable[[Callable[[], None]], Any]


class Call:
    """A call under way. It is recorded in the step in which it was found to be through, with its real begin and end."""

    def __init__(self, work: Any, record: Callable[[], None]) -> None:
        self._work, self._record = work, record

    @property
    def is_through(self) -> bool:
        """Whether waiting would take no time."""
        return bool(self._work.is_completed() if isinstance(self._work, dist.Work) else self._work.done())

    @waits_here
    def wait(self) -> None:
        """Return when it is through. RuntimeError if it failed."""
        self._work.wait()
        self._record()


class Link:
    """This rank's end of the group."""

    def __init__(self, group: Group, device: torch.device, timer: StepTimer) -> None:
        self._group, self._timer = group, timer
        self.size, self.rank = group.size(), group.rank()
        backend = torch_private.backend_of(group, device)
        self._exchange = Exchange(backend, self.size) if backend.name() == "gloo" else None

    def all_reduce(self, x: Tensor) -> Call:
        """Start the sum over replicas, in place."""
        return self._start(reduce_call(x), lambda: dist.all_reduce(x, group=self._group, async_op=True))

    def reduce_scatter(self, out: Tensor, x: Tensor) -> Call:
        """Start the sum of ``x`` [size * n] over replicas, of which ``out`` [n] gets this rank's part."""
        exchange = self._exchange
        if exchange is None:
            return self._start(
                scatter_call(out, x), lambda: reduce_scatter_single(out, x, group=self._group, async_op=True)
            )
        return self._start(
            scatter_call(out, x),
            lambda: exchange.start_reduce_scatter(out, x, dist.ReduceOp.SUM, lambda: None),
            EXCHANGE,
        )

    def all_gather(self, out: Tensor, x: Tensor) -> Call:
        """Start gathering ``x`` [n] of every replica into ``out`` [size * n]."""
        return self._start(
            gather_call(out, x), lambda: all_gather_single(out, x, group=self._group, async_op=True)
        )

    def total(self, value: float, device: torch.device) -> float:
        """Sum of a number over replicas; waits for it."""
        summed = torch.tensor(value, dtype=torch.float64, device=device)
        call = self.all_reduce(summed)
        with self._timer.phase("communication_exposed"):
            call.wait()
        return host_values.number(summed)

    def _start(self, call: OperatorCall, start: Callable[[], Any], algorithm: str | None = None) -> Call:
        """torch's own record would be of the step in which the call began, where its end is not known yet."""
        recorder = active_recorder()
        begin = None if recorder is None else recorder.mark()
        with pause_recording():
            work = start()
        if recorder is None:
            return Call(work, lambda: None)
        kind = recorder.kind_of(call, self._group, None, algorithm)
        ended = list[Any]()
        future = work.get_future() if isinstance(work, dist.Work) else work
        future.add_done_callback(lambda _: ended.append(recorder.mark()))

        def record() -> None:
            self._timer.issue(IssuedCall(begin, ended or [recorder.mark()], kind))

        return Call(work, record)


#: Yields each call that it has started, and goes on once that is through.
Work = Iterator[Call]
#: Begin and end of each wait, as marks of the device's clock: on a GPU the host goes on while the device waits.
Waits = list[tuple[Any, Any]]


class BackgroundWorker:
    """At most one work at a time, driven by the main thread: calls on the group keep one order on all ranks."""

    def __init__(self, timer: StepTimer) -> None:
        self._timer = timer
        self._work: Work | None = None
        self._call: Call | None = None

    def begin(self, work: Work) -> None:
        """Start its first call."""
        assert self._work is None, "the work before is still under way"
        self._work = work
        self._call = next(work, None)

    def progress(self) -> None:
        """Go on as far as that takes no waiting."""
        while self._call is not None and self._call.is_through:
            self._call.wait()
            self._go_on()

    def finish(self) -> Waits:
        """Go on to the end; returns the waits for calls, which count as exposed communication."""
        waits, mark = Waits(), self._timer.clock.mark
        while self._call is not None:
            began = mark()
            with self._timer.phase("communication_exposed"):
                self._call.wait()
            waits.append((began, mark()))
            self._go_on()
        self._work = None
        return waits

    def _go_on(self) -> None:
        assert self._work is not None
        self._call = next(self._work, None)
