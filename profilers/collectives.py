"""Every collective, whoever issued it, seen by a kernel on the ``c10d::*`` operators at the BackendSelect key.

The kernel notes operation, group, bytes and issue time and passes the call on. The end comes from the work's
future; a call without one (point-to-point, reduce-scatter) ends where it is waited for. ``stop()`` takes the
kernels out again, so recording can be switched while a run goes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.library import Library

from profilers.clock import Clock
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


class _Call:
    """One call on its way; ``end`` stays None until its end is known."""

    __slots__ = ("axis", "begin", "bytes", "dtype", "end", "group_size", "operation")

    def __init__(self, operation: str, axis: str, dtype: str, group_size: int, size: int, begin: Any) -> None:
        self.operation, self.axis, self.dtype = operation, axis, dtype
        self.group_size, self.bytes, self.begin = group_size, size, begin
        self.end: Any = None


class CollectiveRecorder:
    """Records the collectives of one rank.

    ``axes`` maps a process group's name to its axis (``dp``, ``tp``, ``pp``); other groups are called ``world``.
    A blocking call is waited for inside the kernel, as its caller would do next, and counts as exposed.
    """

    def __init__(self, timer: StepTimer, axes: dict[str, str]) -> None:
        self._timer, self._axes = timer, axes
        self._calls: list[_Call] = []
        self._without_future: list[tuple[Any, _Call]] = []
        self._library: Library | None = None

    def start(self) -> None:
        """Put the kernels in. Does nothing when they are in already."""
        if self._library is not None:
            return
        self._library = Library("c10d", "IMPL")
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

    def finish(self, work: Any) -> None:
        """Tell that a work without a future (send, recv) has been waited for."""
        for place, (known, call) in enumerate(self._without_future):
            if known is work:
                call.end = self._timer.clock.mark()
                del self._without_future[place]
                return

    def take(self) -> list[_Call]:
        """The calls since the last take, oldest first."""
        calls, self._calls = self._calls, []
        self._without_future.clear()
        return calls

    def _kernel(self, operator: Any, operation: str, payload: str) -> Callable[..., Any]:
        names = [argument.name for argument in operator._schema.arguments]
        tensors_at, group_at = names.index(payload), names.index("process_group")
        async_at = names.index("async_op") if "async_op" in names else None
        below = torch._C._after_ADInplaceOrView_keyset.remove(torch._C.DispatchKey.BackendSelect)
        clock, waiting = self._timer.clock, self._timer.phase("communication_exposed")

        def kernel(keys: Any, *arguments: Any, **named: Any) -> Any:
            call = self._note(operation, arguments[tensors_at], arguments[group_at], clock.mark())
            if async_at is not None and len(arguments) > async_at and not arguments[async_at]:
                with waiting:
                    out = operator.redispatch(keys & below, *arguments, **named)
                    _work_of(out).wait()
                call.end = clock.mark()
            else:
                out = operator.redispatch(keys & below, *arguments, **named)
                self._follow(call, _work_of(out))
            return out

        return kernel

    def _note(self, operation: str, tensors: Any, boxed_group: Any, begin: Any) -> _Call:
        group = dist.ProcessGroup.unbox(boxed_group)
        flat = _flatten(tensors)
        size = sum(tensor.numel() * tensor.element_size() for tensor in flat)
        dtype = str(flat[0].dtype).removeprefix("torch.") if flat else ""
        axis = self._axes.get(group.group_name, "world")
        call = _Call(operation, axis, dtype, group.size(), size, begin)
        self._calls.append(call)
        return call

    def _follow(self, call: _Call, work: Any) -> None:
        clock = self._timer.clock
        try:
            future = work.get_future()
        except RuntimeError:
            self._without_future.append((work, call))
            return

        def ended(_: Any) -> None:
            call.end = clock.mark()

        future.add_done_callback(ended)


def comm_samples(calls: list[_Call], times: StepTimes, clock: Clock) -> list[CommSample]:
    """The calls of one step as records; exposed is the part during which the main thread stood waiting."""
    if not calls:
        return []
    origin = times.changes[0][1]
    waits = times.spans(clock, EXPOSED)
    samples = []
    for call in calls:
        begin = clock.seconds(origin, call.begin)
        end = None if call.end is None else clock.seconds(origin, call.end)
        samples.append(
            CommSample(
                step=times.step,
                operation=call.operation,
                axis=call.axis,
                dtype=call.dtype,
                group_size=call.group_size,
                bytes=call.bytes,
                start_unix=times.start_unix + begin,
                seconds=None if end is None else end - begin,
                exposed_seconds=None if end is None else _overlap_seconds(begin, end, waits),
            )
        )
    return samples


def _overlap_seconds(begin: float, end: float, waits: list[tuple[float, float]]) -> float:
    """Overlap with disjoint, sorted spans; plain Python because a step has few waits and this runs in the rank."""
    total = 0.0
    first = max(bisect_right(waits, (begin, begin)) - 1, 0)
    for wait_begin, wait_end in waits[first:]:
        if wait_begin >= end:
            break
        total += max(0.0, min(end, wait_end) - max(begin, wait_begin))
    return total


def _work_of(result: Any) -> Any:
    return dist.Work.unbox(result[-1] if isinstance(result, (tuple, list)) else result)


def _flatten(tensors: Any) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for item in tensors for tensor in _flatten(item)]
