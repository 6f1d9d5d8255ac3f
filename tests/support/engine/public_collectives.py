"""Every public collective of torch, called as one rank of two calls it, and the names beside them that move nothing.

The union over the supported releases: a name that the installed torch lacks is passed over.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import Tensor

#: Where torch keeps collectives for everybody's use.
MODULES: dict[str, ModuleType] = {"dist": dist, "functional": functional, "differentiable": differentiable}
#: Groups, ranks, settings and waiting: they move no tensor, or (new groups) speak through the store.
SILENT = {
    "dist": """GroupName destroy_process_group get_backend get_backend_config get_backend_impl get_debug_level
        get_default_backend_for_device get_global_rank get_group_rank get_node_local_rank get_pg_count
        get_process_group_ranks get_rank get_world_size init_device_mesh init_process_group is_available
        is_backend_available is_gloo_available is_initialized is_mpi_available is_nccl_available
        is_torchelastic_launched is_ucc_available is_xccl_available new_group new_subgroups
        new_subgroups_by_enumeration record_comm register_rendezvous_handler rendezvous set_debug_level
        set_debug_level_from_env set_timeout shrink_group split_group supports_complex""",
    "functional": """allow_inflight_collective_as_graph_input_ctx wait_tensor wait_tensors""",
    "differentiable": "",
}
#: Not called here, and why.
NOT_CALLED = {
    "dist.breakpoint": "a debugger at the keyboard, then dist.barrier",
}
#: The autograd formulas of operators, called by autograd only.
_FORMULAS = ("_backward", "_setup_context")


def names(module: str) -> list[str]:
    """Public functions of a module that are its own, without silent ones and autograd's formulas."""
    place = MODULES[module]
    home = tuple({place.__name__, "torch.distributed"} if module == "dist" else {place.__name__})
    silent = set(SILENT[module].split())
    found = [name for name, value in vars(place).items() if _is_function(value, home) and name[0] != "_"]
    return sorted(name for name in found if name not in silent and not name.endswith(_FORMULAS))


def _is_function(value: Any, home: tuple[str, ...]) -> bool:
    if not callable(value) or inspect.isclass(value) or not str(value.__module__).startswith(home):
        return False
    return not value.__name__.startswith("_")


def x(rows: int = 2) -> Tensor:
    return torch.ones(rows, 3)


def calls(rank: int) -> dict[str, Callable[[], Any]]:
    """By name, one call each; both ranks make all of them in this order."""
    return {
        **{f"dist.{name}": call for name, call in _whole(rank).items()},
        **{f"dist.{name}": call for name, call in _pairs(rank).items()},
        **{f"dist.{name}": call for name, call in _objects(rank).items()},
        **{f"functional.{name}": call for name, call in _functional(rank).items()},
        **{f"functional.{name}": call for name, call in _in_place(rank).items()},
        **{f"differentiable.{name}": call for name, call in _differentiable(rank).items()},
    }


def _two() -> list[Tensor]:
    return [x(), x()]


def _whole(rank: int) -> dict[str, Callable[[], Any]]:
    first = rank == 0
    return {
        "all_gather": lambda: dist.all_gather(_two(), x()),
        "all_gather_coalesced": lambda: dist.all_gather_coalesced([_two(), _two()], _two()),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(x(4), x()),
        "all_gather_single": lambda: dist.all_gather_single(x(4), x()),
        "_all_gather_base": lambda: dist._all_gather_base(x(4), x()),
        "all_reduce": lambda: dist.all_reduce(x()),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced(_two()),
        "all_to_all": lambda: dist.all_to_all(_two(), _two()),
        "all_to_all_single": lambda: dist.all_to_all_single(x(), x()),
        "barrier": dist.barrier,
        "monitored_barrier": dist.monitored_barrier,
        "broadcast": lambda: dist.broadcast(x(), 0),
        "gather": lambda: dist.gather(x(), _two() if first else None),
        "gather_into_tensor": lambda: dist.gather_into_tensor(x(), x(4) if first else None),
        "gather_single": lambda: dist.gather_single(x(), x(4) if first else None),
        "reduce": lambda: dist.reduce(x(), 0),
        "reduce_scatter": lambda: dist.reduce_scatter(x(), _two()),
        "reduce_scatter_single": lambda: dist.reduce_scatter_single(x(), x(4)),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(x(), x(4)),
        "_reduce_scatter_base": lambda: dist._reduce_scatter_base(x(), x(4)),
        "scatter": lambda: dist.scatter(x(), _two() if first else None),
        "_coalescing_manager": lambda: _together("all_reduce", x()),
        "_coalescing_manager (all_gather)": lambda: _together("all_gather_into_tensor", x(4), x()),
        "_coalescing_manager (reduce_scatter)": lambda: _together("reduce_scatter_tensor", x(), x(4)),
    }


def _together(name: str, *tensors: Tensor) -> None:
    with dist._coalescing_manager():
        for _ in range(2):
            getattr(dist, name)(*tensors)


def _pairs(rank: int) -> dict[str, Callable[[], Any]]:
    first, other = rank == 0, 1 - rank

    def one(source: int) -> None:
        (dist.isend(x(), other) if rank == source else dist.irecv(x(), other)).wait()

    def batch() -> None:
        both = [dist.P2POp(dist.isend, x(), other), dist.P2POp(dist.irecv, x(), other)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return {
        "send": lambda: dist.send(x(), 1) if first else dist.recv(x(), 0),
        "recv": lambda: dist.send(x(), 0) if not first else dist.recv(x(), 1),
        "recv (from anyone)": lambda: dist.send(x(), 0) if not first else dist.recv(x()),
        "isend": lambda: one(0),
        "irecv": lambda: one(1),
        "batch_isend_irecv": batch,
    }


def _objects(rank: int) -> dict[str, Callable[[], Any]]:
    first, two = rank == 0, [None, None]
    return {
        "all_gather_object": lambda: dist.all_gather_object(list(two), rank),
        "broadcast_object_list": lambda: dist.broadcast_object_list(["a"], 0),
        "gather_object": lambda: dist.gather_object(rank, list(two) if first else None),
        "scatter_object_list": lambda: dist.scatter_object_list([None], ["a", "b"] if first else None),
        "send_object_list": lambda: (
            dist.send_object_list(["a"], 1) if first else dist.recv_object_list([""], 0)
        ),
        "recv_object_list": lambda: (
            dist.send_object_list(["a"], 0) if not first else dist.recv_object_list([""], 1)
        ),
    }


def _functional(rank: int) -> dict[str, Callable[[], Any]]:
    group, several = dist.group.WORLD, [x(4), x(4)]

    def with_gradient(name: str, *arguments: Any) -> None:
        """The forward call, then that of its gradient."""
        _settled(getattr(functional, name)(x(4).requires_grad_(), *arguments)).square().sum().backward()

    made: dict[str, tuple[Any, ...]] = {
        "all_gather_single": (x(), 0, group),
        "all_gather_tensor": (x(), 0, group),
        "all_gather_single_coalesced": (several, group),
        "all_gather_into_tensor_coalesced": (several, group),
        "all_reduce": (x(), "sum", group),
        "all_reduce_coalesced": (several, "sum", group),
        "all_to_all_single": (x(), None, None, group),
        "broadcast": (x(), 0, group),
        "permute_tensor": (torch.ones(4), [1, 0], group),
        "reduce_scatter_single": (x(4), "sum", 0, group),
        "reduce_scatter_tensor": (x(4), "sum", 0, group),
        "reduce_scatter_single_coalesced": (several, "sum", [0, 0], group),
        "reduce_scatter_tensor_coalesced": (several, "sum", [0, 0], group),
    }
    twice = {
        "all_gather_single_autograd": (0, group),
        "all_gather_tensor_autograd": (0, group),
        "all_to_all_single_autograd": ([2, 2], [2, 2], group),
        "reduce_scatter_single_autograd": ("sum", 0, group),
        "reduce_scatter_tensor_autograd": ("sum", 0, group),
    }
    return {
        **{name: lambda name=name, a=a: _settled(getattr(functional, name)(*a)) for name, a in made.items()},
        **{name: lambda name=name, a=a: with_gradient(name, *a) for name, a in twice.items()},
    }


def _in_place(rank: int) -> dict[str, Callable[[], Any]]:
    """What compiled code calls where the source says ``dist.all_reduce(x)``."""
    other = 1 - rank
    made: dict[str, tuple[Any, ...]] = {
        "all_gather_inplace": (_two(), x()),
        "all_gather_tensor_inplace": (x(4), x()),
        "all_reduce_inplace": (x(),),
        "all_to_all_inplace": (x(), x()),
        "reduce_scatter_inplace": (x(), _two()),
        "reduce_scatter_tensor_inplace": (x(), x(4)),
        "batch_p2p_ops_inplace": (["isend", "irecv"], [other, other], [7, 7], _two(), dist.group.WORLD),
    }

    def sent(source: int) -> Any:
        return _settled(
            (functional.isend_inplace if rank == source else functional.irecv_inplace)(x(), other)
        )

    return {
        **{name: lambda name=name, a=a: _settled(getattr(functional, name)(*a)) for name, a in made.items()},
        "isend_inplace": lambda: sent(0),
        "irecv_inplace": lambda: sent(1),
    }


def _differentiable(rank: int) -> dict[str, Callable[[], Any]]:
    made: dict[str, tuple[Any, ...]] = {
        "all_gather": (x(),),
        "_all_gather_base": (x(4), x()),
        "all_reduce": (x(),),
        "all_to_all": (_two(), _two()),
        "all_to_all_single": (x(), x()),
        "broadcast": (x(), 0),
        "gather": (x(),),
        "reduce": (x(), 0),
        "reduce_scatter": (x(), _two()),
        "scatter": (_two(),),
    }
    return {name: lambda name=name, a=a: getattr(differentiable, name)(*a) for name, a in made.items()}


def _settled(result: Any) -> Any:
    """The result, arrived."""
    if isinstance(result, list | tuple):
        return [_settled(part) for part in result]
    return functional.wait_tensor(result) if isinstance(result, Tensor) else result


@contextlib.contextmanager
def old_names_allowed() -> Iterator[None]:
    """Deprecated names are called on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
