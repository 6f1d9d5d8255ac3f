"""Every collective, whoever issued it.

Those of torch's own layers (DDP, FSDP2, compiled code) are seen by a kernel on the ``c10d::*`` operators at the
BackendSelect key: it notes operation, group, bytes and issue time and passes the call on; the end comes from the
work's future. The engine's own do not pass there and tell the ``active()`` recorder themselves, for a tenth of
the cost. ``stop()`` takes the kernels out again, so recording can be switched while a run goes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import get_ident
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.library import Library

from profilers.records import CommSample
from profilers.step_timer import EXPOSED, StepTimer, StepTimes

#: Operator -> (operation, argument whose bytes are the payload S of nccl-tests' definitions).
OPERATIONS: dict[str, tuple[str, str]] = {
    "allreduce_": ("all_reduce", "tensors"),
    "allreduce_coalesced_": ("all_reduce", "tensors"),
    "allgather_": ("all_gather", "output_tensors"),
    "_allgather_base_": ("all_gather", "output_tensor"),
    "allgather_coalesced_": ("all_gather", "output_lists"),
    "allgather_into_tensor_coalesced_": ("all_gather", "outputs"),
    "reduce_scatter_": ("reduce_scatter", "input_tensors"),
    "_reduce_scatter_base_": ("reduce_scatter", "input_tensor"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", "inputs"),
    "alltoall_": ("all_to_all", "input_tensors"),
    "alltoall_base_": ("all_to_all", "input"),
    "broadcast_": ("broadcast", "tensors"),
    "reduce_": ("reduce", "tensors"),
    "gather_": ("gather", "input_tensors"),
    "scatter_": ("scatter", "output_tensors"),
    "send": ("send", "tensors"),
    "recv_": ("recv", "tensors"),
    "recv_any_source_": ("recv", "tensors"),
    "barrier": ("barrier", "tensor"),
}


_new = tuple.__new__


class Call(NamedTuple):
    """One call as the kernel notes it; what takes longer to find out waits for the end of the step.

    ``end`` is a list that holds the mark once it is known: an asynchronous call ends on another thread.
    """

    operation: str
    group: Any
    dtype: torch.dtype | None
    bytes: int
    begin: Any
    end: list[Any]
    blocking: bool
    sent_bytes: int | None = None
    algorithm: str | None = None


#: The recorder that is started in this process; the kernels are the process's too.
_started: list[CollectiveRecorder] = []


#: Threads whose collectives nobody records.
_unseen: set[int] = set()


@contextmanager
def unrecorded() -> Iterator[None]:
    """Collectives that this thread issues inside are no part of a step: neither recorded nor timed."""
    me = get_ident()
    _unseen.add(me)
    try:
        yield
    finally:
        _unseen.discard(me)


def active() -> CollectiveRecorder | None:
    """The recorder that collectives outside the dispatcher tell about themselves."""
    return _started[0] if _started else None


class CollectiveRecorder:
    """Records the collectives of one rank.

    ``axes`` maps a process group's name to its axis (``dp``, ``tp``, ``pp``); other groups are called ``world``.
    A blocking call is waited for inside the kernel, as its caller would do next, and counts as exposed.
    """

    def __init__(self, timer: StepTimer, axes: dict[str, str]) -> None:
        self._timer, self._axes = timer, axes
        self._places: dict[dist.ProcessGroup, tuple[str, int]] = {}
        self._calls: list[Call] = []
        self._futureless: set[str] = set()
        self._library: Library | None = None

    def start(self) -> None:
        """Put the kernels in. Does nothing when they are in already."""
        if self._library is not None:
            return
        self._library = Library("c10d", "IMPL")
        _started.append(self)
        for name, (operation, payload) in OPERATIONS.items():
            operator = getattr(torch.ops.c10d, name, None)
            if operator is not None:
                kernel = self._kernel(operator.default, operation, payload)
                self._library.impl(name, kernel, "BackendSelect", with_keyset=True)

    def stop(self) -> None:
        """Take the kernels out; calls seen so far stay."""
        if self._library is not None:
            self._library._destroy()
            self._library = None
            _started.remove(self)

    def begin(self) -> Any:
        """A call begins that is waited for at once; returns its mark."""
        return self._timer.pause(EXPOSED)

    def end(
        self,
        operation: str,
        group: Any,
        tensor: torch.Tensor,
        begin: Any,
        sent_bytes: int | None = None,
        algorithm: str | None = None,
    ) -> None:
        """It has ended; all of its seconds count as exposed."""
        end = self._timer.resume(EXPOSED, begin)
        # Without the named tuple's own constructor: this runs right after a wait, when nothing is in a cache.
        about = (operation, group, tensor.dtype, tensor.nbytes, begin, [end], True, sent_bytes, algorithm)
        self._calls.append(_new(Call, about))

    def waited(self, begin: Any) -> None:
        """The end of a wait, begun with ``begin``, for calls that were issued earlier."""
        self._timer.resume(EXPOSED, begin)

    def issue(self, operation: str, group: Any, tensor: torch.Tensor) -> Call:
        """A call begins that is waited for later."""
        call = Call(operation, group, tensor.dtype, tensor.nbytes, self._timer.clock.mark(), [], False)
        self._calls.append(call)
        return call

    def finish(self, call: Call) -> None:
        """A call that was issued has been waited for."""
        call.end.append(self._timer.clock.mark())

    def take(self) -> list[Call]:
        """The calls since the last take, oldest first."""
        calls = self._calls.copy()
        self._calls.clear()
        return calls

    def samples(self, calls: list[Call], times: StepTimes) -> list[CommSample]:
        """The calls of one step as records; exposed is the part during which the main thread stood waiting.

        A call whose end the device has not passed, or that failed, has no seconds: nothing here waits for it.
        """
        if not calls:
            return []
        clock, origin, waits = self._timer.clock, times.changes[0][1], times.spans(self._timer.clock, EXPOSED)
        samples = []
        for call in calls:
            ended = bool(call.end) and clock.ready(call.end[0])
            # One that has not even begun, on a stream of its own, is put where its step began.
            begin = clock.seconds(origin, call.begin) if ended or clock.ready(call.begin) else 0.0
            seconds = exposed = clock.seconds(call.begin, call.end[0]) if ended else None
            if seconds is not None and not call.blocking:
                exposed = _overlap_seconds(begin, begin + seconds, waits)
            axis, size = self._place(call.group)
            dtype = _dtype_name(call.dtype)
            start = times.start_unix + begin
            told = call.sent_bytes, call.algorithm
            samples.append(
                CommSample(
                    times.step, call.operation, axis, dtype, size, call.bytes, start, seconds, exposed, *told
                )
            )
        return samples

    def _place(self, known: Any) -> tuple[str, int]:
        group = known if isinstance(known, dist.ProcessGroup) else dist.ProcessGroup.unbox(known)
        place = self._places.get(group)
        if place is None:
            place = self._places[group] = self._axes.get(group.group_name, "world"), group.size()
        return place

    def _kernel(self, operator: Any, operation: str, payload: str) -> Callable[..., Any]:
        """A kernel with little in it: it runs between two waits, when nothing it touches is in a cache."""
        schema = operator._schema
        names = [argument.name for argument in schema.arguments]
        tensors_at, group_at = names.index(payload), names.index("process_group")
        async_at = names.index("async_op") if "async_op" in names else len(names)
        below = torch._C._after_ADInplaceOrView_keyset.remove(torch._C.DispatchKey.BackendSelect)
        redispatch, unbox, several = operator.redispatch, dist.Work.unbox, len(schema.returns) > 1
        timer, mark, note = self._timer, self._timer.clock.mark, self._calls.append

        def kernel(keys: Any, *arguments: Any, **named: Any) -> Any:
            if _unseen and get_ident() in _unseen:
                return redispatch(keys & below, *arguments, **named)
            dtype, size = _payload(arguments[tensors_at])
            blocking = len(arguments) > async_at and not arguments[async_at]
            begin = timer.enter(EXPOSED) if blocking else mark()
            out = redispatch(keys & below, *arguments, **named)
            work = unbox(out[-1] if several else out)
            call = Call(operation, arguments[group_at], dtype, size, begin, [], blocking)
            if blocking:
                work.wait()
                call.end.append(timer.leave())
            else:
                self._follow(call, work)
            note(call)
            return out

        return kernel

    def _follow(self, call: Call, work: Any) -> None:
        clock = self._timer.clock
        if call.operation in self._futureless:
            return
        try:
            future = work.get_future()
        except RuntimeError:
            # The refusal collects a C++ stack trace, which costs more than the call: ask once for each operation.
            self._futureless.add(call.operation)
            return

        def note(done: Any) -> None:
            try:
                done.value()
            except RuntimeError:  # its peers are gone, or the communicator was torn down: it never ended
                return
            call.end.append(clock.mark())

        future.add_done_callback(note)


@lru_cache
def _dtype_name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.") if dtype else ""


def _payload(tensors: Any) -> tuple[torch.dtype | None, int]:
    """dtype and bytes of a tensor, or of lists of them."""
    if isinstance(tensors, torch.Tensor):
        return tensors.dtype, tensors.nbytes
    parts = [_payload(part) for part in tensors]
    return (parts[0][0] if parts else None), sum(size for _, size in parts)


def _overlap_seconds(begin: float, end: float, waits: list[tuple[float, float]]) -> float:
    """Overlap with disjoint, sorted spans; plain Python because a step has few waits and this runs in the rank."""
    total = 0.0
    first = max(bisect_right(waits, (begin, begin)) - 1, 0)
    for wait_begin, wait_end in waits[first:]:
        if wait_begin >= end:
            break
        total += max(0.0, min(end, wait_end) - max(begin, wait_begin))
    return total
