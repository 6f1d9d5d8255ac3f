"""The memory behind tensors: whose it is, how much, and who still holds it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Noted:
    """Memory that was seen once; noting it does not keep it alive, but its identity is not given out again."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def note(self, tensor: Tensor) -> None:
        """Once for all tensors that share memory."""
        storage = tensor.untyped_storage()
        self._seen.setdefault(identity(tensor), (StorageWeakRef(storage), storage.nbytes()))

    def total_bytes(self) -> int:
        """Of all that was noted."""
        return sum(size for _, size in self._seen.values())

    def living_bytes(self, besides: Collection[int] = ()) -> int:
        """Of what somebody still holds, leaving out some identities."""
        seen = self._seen.items()
        return sum(size for key, (storage, size) in seen if key not in besides and not storage.expired())


class Made(TorchDispatchMode):
    """Notes the memory that operators make. What lives when a forward is over is held for its backward by somebody:
    autograd, a checkpoint, a function's context.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.noted = Noted()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.noted.note(leaf)
        return out


def identity(tensor: Tensor) -> int:
    """What two tensors have in common that share their memory."""
    return int(tensor.untyped_storage()._cdata)


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory behind some tensors, each counted once."""
    return sum({identity(one): one.untyped_storage().nbytes() for one in tensors}.values())


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@contextmanager
def parameters_of(module: nn.Module) -> Iterator[set[int]]:
    """Identities of all parameters: as they are between forwards, and as each submodule meets them in its own."""
    seen = {identity(local(one)) for one in module.parameters()}

    def note(submodule: nn.Module, _: object) -> None:
        seen.update(identity(local(one)) for one in submodule.parameters())

    handles = [submodule.register_forward_pre_hook(note) for submodule in module.modules()]
    yield seen
    for handle in handles:
        handle.remove()
    seen.update(identity(local(one)) for one in module.parameters())
