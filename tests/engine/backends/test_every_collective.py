"""Each public collective of the installed torch is called on two ranks, and the recorder sees every one."""

from __future__ import annotations

import traceback

from torch import _C

from profilers.collectives.recorder import CollectiveRecorder
from profilers.records.operations import OPERATIONS
from profilers.steps.clock import CpuClock
from profilers.steps.timer import StepTimer
from tests.support.engine.public_collectives import MODULES, NOT_CALLED, calls, names, old_names_allowed
from tests.support.ranks import on_ranks

#: Operators that move nothing between ranks.
MOVES_NOTHING = {"check_for_nan"}
#: What stands in a name -> the operation that is recorded; the first that fits.
RECORDED = (
    ("all_gather", "all_gather"),
    ("reduce_scatter", "reduce_scatter"),
    ("all_to_all", "all_to_all"),
    ("permute", "all_to_all"),
    ("all_reduce", "all_reduce"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("coalescing", "all_reduce"),
    ("reduce", "reduce"),
)
#: What else a call does: sizes are told first, and an autograd formula has a call of its own.
MORE = {
    "gather_object": "all_gather",
    "scatter_object_list": "broadcast",
    "all_gather_single_autograd": "reduce_scatter",
    "all_gather_tensor_autograd": "reduce_scatter",
    "reduce_scatter_single_autograd": "all_gather",
    "reduce_scatter_tensor_autograd": "all_gather",
}
#: On gloo torch scatters instead.
OTHERWISE = {"differentiable.all_to_all": {"scatter"}}
REFUSED = "gloo refused it below the recorder's kernel"
#: The first is gloo's from a torch newer than 2.11 on; the others came with torch 2.15, for NCCL only.
MAY_BE_REFUSED = {"dist.all_to_all", "dist.gather_single", "dist.gather_into_tensor"}


def recorded(rank: int) -> dict[str, set[str] | str]:
    """Call -> the operations that the recorder noted, or who refused it."""
    found: dict[str, set[str] | str] = {}
    for name, call in calls(rank).items():
        if not hasattr(MODULES[name.split(".")[0]], name.split(".")[1].split(" ")[0]):
            continue
        recorder = CollectiveRecorder(StepTimer(CpuClock()), {})
        recorder.start()
        try:
            with old_names_allowed():
                call()
            found[name] = {call.operation for call in recorder.take()}
        except (RuntimeError, NotImplementedError) as error:
            passed = "in kernel" in "".join(traceback.format_tb(error.__traceback__))
            found[name] = REFUSED if passed and name in MAY_BE_REFUSED else str(error)
        finally:
            recorder.stop()
    return found


def expected(name: str, rank: int) -> set[str]:
    bare = name.split(".")[1]
    if "batch" in bare:
        return {"send", "recv"}
    if "send" in bare or "recv" in bare:
        return {"recv" if ("send" in bare) == (rank == 1) else "send"}
    operation = next(operation for part, operation in RECORDED if part in bare)
    return OTHERWISE.get(name) or {operation, MORE.get(bare, operation)}


def test_every_public_collective_is_recorded() -> None:
    for rank, found in enumerate(on_ranks(2, recorded)):
        seen = {name: operations for name, operations in found.items() if operations != REFUSED}
        assert seen == {name: expected(name, rank) for name in seen}
        assert len(seen) > 50


def test_no_public_name_is_unknown() -> None:
    """A newer torch's new name has to be called by the test above, or listed as one that moves nothing."""
    known = set(calls(0)) | set(NOT_CALLED)
    public = [f"{module}.{name}" for module in MODULES for name in names(module)]
    assert len(public) > 50
    assert [name for name in public if name not in known] == []


def test_no_operator_is_unknown() -> None:
    """Whatever layer of torch calls, it goes through these."""
    operators = [name.split("::") for name in _C._dispatch_get_all_op_names()]
    found = {name for space, name in operators if space == "c10d"}
    assert len(found) > 15
    assert found - {name for one in OPERATIONS for name in one.operators} - MOVES_NOTHING == set()
