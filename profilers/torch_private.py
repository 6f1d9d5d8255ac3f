"""Every private name of torch's that this project uses, so that a new release breaks here and nowhere else.

``tests/profilers/test_torch_private.py`` calls each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch.autograd import graph
from torch.library import Library
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader

#: ``functional_collectives`` give traced collectives: what compiled code calls in place of those of ``dist``.
__all__ = ["TorchDispatchMode", "functional_collectives", "tree_leaves"]

#: One call for a list of tensors: torch's optimizers use these, and there is no public name for them.
foreach_copy_: Any = torch._foreach_copy_
foreach_mul_: Any = torch._foreach_mul_
foreach_norm: Any = torch._foreach_norm
foreach_zero_: Any = torch._foreach_zero_
#: Where the training thread stands while autograd runs, and the file through which it calls operators.
BACKWARD: CodeType = graph._engine_run_backward.__code__
OPERATORS_FILE: str = torch._ops.__file__
#: Whose ``__next__`` waits for a batch, whatever kind of data loader it is of.
DATA_ITERATOR: type[Any] = dataloader._BaseDataLoaderIter


def backend_of(group: dist.ProcessGroup, device: torch.device) -> Any:
    """What carries a group's calls for a device: its methods skip Python's checks, which cost as much as a message."""
    return group._get_backend(device)  # type: ignore[attr-defined,unused-ignore]


def gather_start(backend: Any) -> Any:
    """Starts an all-gather of a backend into one tensor."""
    return backend._allgather_base


def scatter_start(backend: Any) -> Any:
    """Starts a reduce-scatter of a backend from one tensor."""
    return backend._reduce_scatter_base


def attention_kernel(name: str) -> tuple[Any, Any]:
    """A fused attention of that name that returns its log-sum-exp as well, and its backward; None each where this torch
    has none.
    """
    forward = f"_scaled_dot_product_{name}"
    return getattr(torch.ops.aten, forward, None), getattr(torch.ops.aten, f"{forward}_backward", None)


def own_store(name: str) -> dist.Store:
    """The default group's store over a connection of its own: a wait on that one blocks all other calls on it."""
    default: Any = c10d._get_default_store()
    return dist.PrefixStore(name, default.clone())


def memory_identity(tensor: Tensor) -> int:
    """What tensors have in common that share their memory, as long as one of them lives."""
    return int(tensor.untyped_storage()._cdata)


def version_of(tensor: Tensor) -> int:
    """How often it was changed in place."""
    return tensor._version


def fsdp_groups(module: Any) -> list[Any]:
    """FSDP2's groups of a module's parameters: newer releases have a list of them, older ones one or none."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [group for group in (state._fsdp_param_group,) if group is not None]
    return list(groups)


def gather_asynchronously(module: Any, wanted: bool) -> None:
    """Whether FSDP2's gathers of a module run beside its computation, which is so by itself on GPUs alone."""
    module._set_unshard_async_op(wanted)


def whole_shape(parameter: Any) -> tuple[int, ...]:
    """Of one of FSDP2's parameters before it was sharded."""
    return tuple(parameter._orig_size)


def allocator_snapshot(device: torch.device | None = None) -> dict[str, Any]:
    """What the GPU allocator holds, and its settings."""
    snapshot: dict[str, Any] = torch.cuda.memory._snapshot(device)
    return snapshot


def record_allocations(most: int | None) -> None:
    """Keep the stacks of so many events of the GPU allocator from now on; None keeps none."""
    if most is None:
        torch.cuda.memory._record_memory_history(enabled=None)
    else:
        torch.cuda.memory._record_memory_history(max_entries=most)


def schema_of(operator: Any) -> Any:
    """An operator's arguments and returns."""
    return operator._schema


def reduction_name(reduction: Any) -> str:
    """What a collective does with its parts, such as "SUM" or "MAX", whatever torch gives it as: a ``RedOpType``,
    a ``ReduceOp``, or the object into which the dispatcher boxes that, which answers with a number.
    """
    kinds: Any = dist.ReduceOp.RedOpType
    if isinstance(reduction, torch.ScriptObject):
        boxed: Any = reduction
        reduction = kinds(boxed.op())
    return str((reduction if isinstance(reduction, kinds) else reduction.op).name)


def keys_below_backend_select() -> Any:
    """The dispatch keys below the one at which collectives are recorded."""
    return torch._C._after_ADInplaceOrView_keyset.remove(torch._C.DispatchKey.BackendSelect)


def call_after_backward(function: Callable[[], None]) -> None:
    """Call it when all gradients of the backward that is running are there. RuntimeError if none is running.

    What is queued later is called later: DDP waits for its averages in such a call, queued with its last one.
    """
    engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined,unused-ignore]
    engine.queue_callback(function)


def groups() -> list[dist.ProcessGroup]:
    """Every group that this process is in."""
    return list(c10d._world.pg_map) if dist.is_initialized() else []


def wait_of_functional_collectives() -> Any:
    """The operator with which functional collectives, those of DTensor and of compiled code, are waited for."""
    return torch.ops._c10d_functional.wait_tensor.default


def remove_kernels(library: Library) -> None:
    """Take a library's kernels out."""
    library._destroy()


def flight_dumps(of_nccl: bool) -> list[bytes]:
    """The Flight Recorder of this process as JSON, NCCL's own first where it is asked for and built in."""
    from torch._C import _distributed_c10d

    recorders: Any = _distributed_c10d
    nccl = getattr(recorders, "_dump_nccl_trace_json", None) if of_nccl else None
    dumps = [dump() for dump in (nccl, recorders._dump_fr_trace_json) if dump is not None]
    return [dump.encode() if isinstance(dump, str) else dump for dump in dumps]


def fake_tensors() -> Any:
    """A context in which tensors have shapes and no memory."""
    from torch._subclasses.fake_tensor import (
        FakeTensorMode,
    )  # takes a while to load, and only a dry run needs it

    return FakeTensorMode(allow_non_fake_inputs=True)


def compiled_code_folders() -> tuple[str, str]:
    """Where Inductor keeps what it compiled: in use, and where nothing else is asked for."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

    return cache_dir(), default_cache_dir()


def compiler_lock(path: str, seconds: float) -> Any:
    """The lock that Inductor's compilers take on a file."""
    from torch.utils._filelock import FileLock

    return FileLock(path, timeout=seconds)
