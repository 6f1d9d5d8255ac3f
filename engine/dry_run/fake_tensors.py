"""Stand-ins for parts that need real numbers, and the memory behind tensors: whose it is, and who still holds it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

from engine.footprint.activations import SMALLEST_BYTES
from engine.model.activation_memory import Offload, is_weight
from engine.model.axes import Compute, ExpertAxis
from engine.model.decoder import Decoder
from engine.model.experts.mixture import Mixture
from profilers.torch_private import TorchDispatchMode, memory_identity, tree_leaves


class StorageRegistry:
    """Memory that was seen once; noting it does not keep it alive, but its identity is not given out again."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def note(self, tensor: Tensor) -> None:
        """Once for all tensors that share memory."""
        storage = tensor.untyped_storage()
        self._seen.setdefault(memory_identity(tensor), (StorageWeakRef(storage), storage.nbytes()))

    def total_bytes(self) -> int:
        """Of all that was noted."""
        return sum(size for _, size in self._seen.values())

    def living_bytes(self, besides: Collection[int] = ()) -> int:
        """Of what somebody still holds, leaving out some identities."""
        storages = self._seen.items()
        return sum(size for key, (storage, size) in storages if key not in besides and not storage.expired())


class AllocationRecorder(TorchDispatchMode):
    """Notes the memory that operators make. What lives when a forward is over is held for its backward by somebody:
    autograd, a checkpoint, a function's context.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.noted = StorageRegistry()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.noted.note(leaf)
        return out


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory behind some tensors, each counted once."""
    return sum({memory_identity(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@contextmanager
def parameters_of(module: nn.Module) -> Iterator[set[int]]:
    """Identities of all parameters: as they are between forwards, and as each submodule meets them in its own."""
    identities = {memory_identity(local(parameter)) for parameter in module.parameters()}

    def note(submodule: nn.Module, _: object) -> None:
        identities.update(memory_identity(local(parameter)) for parameter in submodule.parameters())

    handles = [submodule.register_forward_pre_hook(note) for submodule in module.modules()]
    yield identities
    for handle in handles:
        handle.remove()
    identities.update(memory_identity(local(parameter)) for parameter in module.parameters())


def put_in(decoder: Decoder) -> None:
    """Give a stage its stand-ins; call it before the first forward."""
    for module in decoder.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(NullAllGather())  # type: ignore[arg-type]
        if isinstance(module, Mixture):
            module.axis = EvenExperts(module.axis)


class NullAllGather:
    """An all-gather that sends nothing: one to a thousand ranks that are not there would still copy for each."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The message's memory."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, *_: Any, **__: Any) -> None:
        """Nothing."""


class EvenExperts:
    """An expert axis whose tokens fall evenly on all experts: how many do in truth, only a router knows."""

    def __init__(self, axis: ExpertAxis) -> None:
        self._axis, self.size, self.rank = axis, axis.size, axis.rank

    def run_sorted(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        """As the axis says, with a few rows more where they do not divide evenly."""
        experts = counts.shape[0]
        padded = F.pad(rows, (0, 0, 0, -rows.shape[0] % experts)) if rows.shape[0] % experts else rows
        results = self._axis.run_padded(padded.unflatten(0, (experts, -1)), compute)
        return results.flatten(0, 1)[: rows.shape[0]]

    def run_padded(self, slots: Tensor, compute: Compute) -> Tensor:
        """As the axis says."""
        return self._axis.run_padded(slots, compute)


class CountedOffload(Offload):
    """Lets go of what would leave for the host, and counts it; ``largest_block_bytes`` is one block's share."""

    def __init__(self) -> None:
        super().__init__()
        self.largest_block_bytes = 0

    def run(self, blocks: Iterable[Callable[..., Tensor]], x: Tensor, resident: Tensor | None) -> Tensor:
        """As the offload does, without a way back."""
        assert resident is not None
        self.host_bytes = self.largest_block_bytes = 0
        steps = list(blocks)
        for block, tier in zip(steps, self.tiers_of(len(steps)), strict=True):
            if tier is None:
                x = block(x, resident)
                continue
            storages = StorageRegistry()
            with saved_tensors_hooks(_leaves(storages, memory_identity(resident)), _comes_back):
                x = block(x, resident)
            taken_bytes = storages.total_bytes()
            self.host_bytes += taken_bytes if tier == "host" else 0
            self.largest_block_bytes = max(self.largest_block_bytes, taken_bytes)
        return x


def _leaves(storages: StorageRegistry, resident: int) -> Any:
    def pack(tensor: Tensor) -> Tensor | None:
        is_small = tensor.untyped_storage().nbytes() < SMALLEST_BYTES
        if is_small or memory_identity(tensor) == resident or is_weight(tensor):
            return tensor
        storages.note(tensor)
        return None

    return pack


def _comes_back(_: object) -> Tensor:
    raise AssertionError("a dry run has no backward behind an offload")
