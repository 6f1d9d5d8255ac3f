"""Where a rank of a job that is not ours stands waiting for others: for a work, for a tensor, and after a backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.library import Library

from profilers import torch_private
from profilers.collectives.recorder import CollectiveRecorder
from profilers.rank.phases import FunctionPatches, JobTimer
from profilers.records.schema import PHASES
from profilers.steps.rank_status import EXPOSED
from profilers.steps.timer import IssuedCall, StepTimer
from profilers.steps.wait_sampler import waits_here

_BACKWARD = PHASES.index("backward")
#: What a group is called that nobody has named: all ranks, or some.
ALL_RANKS, SOME_RANKS = "world", "group"
#: How a mesh describes the groups of a dimension.
_MESH = "mesh_"


def axis_of(group: dist.ProcessGroup) -> str:
    """The name of the mesh's dimension that a group is of, where there is one."""
    described = str(getattr(group, "group_desc", ""))
    if described.startswith(_MESH) and len(described) > len(_MESH):
        return described.removeprefix(_MESH)
    return ALL_RANKS if group.size() == dist.get_world_size() else SOME_RANKS


class JobRecorder(CollectiveRecorder):
    """Names groups by their mesh, and tells of each call that is waited for later."""

    def __init__(self, timer: StepTimer, on_issue: Callable[[IssuedCall], None]) -> None:
        super().__init__(timer, {})
        self._on_issue = on_issue

    def tell(self, call: IssuedCall) -> None:
        super().tell(call)
        self._on_issue(call)

    def _place(self, group: dist.ProcessGroup) -> tuple[str, int]:
        return axis_of(group), group.size()


class BackwardPhase:
    """The phase of a backward, and at its end the wait for what was sent during it.

    DDP averages gradients while it computes others, and waits for the averages when all gradients are there. That
    stretch is exposed communication, until the last of these calls ends.
    """

    def __init__(self, timer: JobTimer) -> None:
        self._timer = timer
        self._calls: list[IssuedCall] = []
        self._depth, self._queued, self._waiting = 0, False, False

    def begin_call(self, call: IssuedCall) -> None:
        """A call that is waited for later begins; on the thread that computes gradients, if one runs."""
        if not self._depth:
            return
        self._calls.append(call)
        if not self._queued:
            try:
                torch_private.call_after_backward(self._gradients_are_there)
                self._queued = True
            except RuntimeError:  # sent by another thread beside it
                return

    def __enter__(self) -> None:
        if not self._depth:
            self._calls, self._queued, self._waiting = [], False, False
        self._depth += 1
        self._timer.enter(_BACKWARD)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._waiting and not self._depth:
            self._timer.leave(self._last_end())
            self._waiting = False
        self._timer.leave()

    def _gradients_are_there(self) -> None:
        if any(not call.end for call in self._calls):
            self._waiting = True
            self._timer.enter(EXPOSED)

    def _last_end(self) -> Any:
        """When the last of the calls ended, where a mark says when; else now."""
        ends = [call.end[0] for call in self._calls if call.end]
        if len(ends) < len(self._calls) or not all(isinstance(end, float) for end in ends):
            return None
        return max(ends)


def watch_works(replaced: FunctionPatches, timer: StepTimer, is_ours: Callable[[], bool]) -> None:
    """Note each ``work.wait()`` of the thread for which ``is_ours``."""
    note, mark = timer.note, timer.clock.mark

    def make(wait: Any) -> Any:
        @waits_here
        def waited(*arguments: Any, **named: Any) -> Any:
            if not timer.detailed or not is_ours():
                return wait(*arguments, **named)
            begin = mark()
            result = wait(*arguments, **named)
            note((begin, mark(), None))
            return result

        return waited

    replaced.put(dist.Work, "wait", make)


class TensorWaits:
    """Notes waits for the tensors of functional collectives: those of DTensor, and of compiled code."""

    def __init__(self, timer: StepTimer, is_ours: Callable[[], bool]) -> None:
        operator = torch_private.wait_of_functional_collectives()
        self._library = Library("_c10d_functional", "IMPL")
        kernel = partial(_wait_tensor, timer, is_ours, operator, torch_private.keys_below_backend_select())
        self._library.impl("wait_tensor", kernel, "BackendSelect", with_keyset=True)

    def stop(self) -> None:
        """Take the kernel out."""
        torch_private.remove_kernels(self._library)


@waits_here
def _wait_tensor(
    timer: StepTimer, is_ours: Callable[[], bool], operator: Any, below: Any, keys: Any, tensor: Any
) -> Any:
    begin = timer.clock.mark()
    result = operator.redispatch(keys & below, tensor)
    if timer.detailed and is_ours():
        timer.note((begin, timer.clock.mark(), None))
    return result
