"""The device's memory and kernels: tensors on CUDA are fake, tensors on the host are real, and they do not mix."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map

from tests.support.gpu.fake_cuda.order import Order, tensors_of, written_by
from tests.support.gpu.fake_cuda.values import Readings

aten = torch.ops.aten
#: Operators that bring values from one device to another.
_COPIES = {
    aten.copy_.default,
    aten._to_copy.default,
}
_SETS = (aten.set_.source_Storage, aten.set_.source_Storage_storage_offset)
_DEVICE = torch.ops.prim.device.default


class MixedDevicesError(AssertionError):
    """A tensor of the host met one of the device, or a generator one of the other."""


class _Shapes(FakeTensorMode):
    """Never looks for a device to make tensors on."""

    avoid_device_init = True  # type: ignore[assignment]


class Gpu(TorchDispatchMode):
    """Every operator passes here, those of backward as well. One that touches CUDA makes shapes and no values; what
    comes down to the host is filled with :class:`Readings`. ``order`` sees which stream touches what.
    """

    def __init__(self) -> None:
        super().__init__()
        self.readings, self.order = Readings(), Order()
        self._fake = _Shapes(allow_non_fake_inputs=True)
        self._special: dict[Any, Callable[..., Any]] = {
            aten._local_scalar_dense.default: self._read,
            aten.copy_.default: self._copy,
            aten.nonzero.default: self._nonzero,
            aten.record_stream.default: self.order.record_stream,
            aten._grouped_mm.default: self._grouped,
            **{one: partial(self._uncached, one) for one in _SETS},
        }
        self.operators = 0
        #: Errors that the engine notes and goes on.
        self.missed: list[BaseException] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # asked so often that it counts
        kwargs = dict(kwargs or {})
        tensors = [*tensors_of(args), *tensors_of(kwargs.values())]
        if any(is_traceable_wrapper_subclass(one) for one in tensors):
            return NotImplemented  # a DTensor takes itself apart first
        if not _touches_cuda(tensors, kwargs):
            self.order.host_touches(func, tensors)
            return func(*args, **kwargs)
        self.operators += 1
        _check_devices(func, args, kwargs, tensors)
        if func in self._special:
            return self._special[func](*args, **kwargs)
        out = self._shapes(func, args, kwargs)
        self.order.launched(func, args, tensors, out)
        return self._landed(out) if isinstance(out, Tensor) else tree_map(self._landed, out)

    def _shapes(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        kwargs.pop("pin_memory", None)  # of the host's memory, which is made in _landed
        with self._fake:
            return func(*args, **kwargs)

    def _landed(self, leaf: Any) -> Any:
        """A result on the host, with values."""
        if not isinstance(leaf, FakeTensor) or leaf.fake_device.type != "cpu":
            return leaf
        with torch.utils._python_dispatch._disable_current_modes():
            host = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="cpu")
            return self.readings.fill(host)

    def _uncached(self, *call: Any) -> Any:
        """For an operator that takes a storage: what fake tensors remember of calls would keep it for ever."""
        self._fake.cache_enabled = False
        try:
            return self._shapes(call[0], call[1:], {})
        finally:
            self._fake.cache_enabled = True

    def _read(self, tensor: Tensor) -> float | int | bool:
        self.order.read(tensor)
        return self.readings.number(tensor.dtype)

    def _copy(self, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        if isinstance(target, FakeTensor):
            self._shapes(aten.copy_.default, (target, source), {})
        else:
            assert target.shape.numel() == source.shape.numel() or source.ndim <= target.ndim
            self.readings.fill(target)
        self.order.copied(target, source, non_blocking)
        return target

    def _grouped(self, x: Tensor, weight: Tensor, *others: Any, **named: Any) -> Tensor:
        """torch's shapes know this product in bf16 alone; its kernels take wider numbers as well."""
        with self._fake:
            product = aten._grouped_mm.default(x.bfloat16(), weight.bfloat16(), *others, **named)
            out: Tensor = product.to(x.dtype)
        tensors = [x, weight, *tensors_of((*others, *named.values()))]
        self.order.launched(aten._grouped_mm.default, (x, weight), tensors, out)
        return out

    def _nonzero(self, tensor: Tensor) -> Tensor:
        """Half of the places: how many there are, only values tell."""
        self.order.read(tensor)
        with self._fake:
            return tensor.new_empty((tensor.numel() // 2, tensor.ndim), dtype=torch.int64)


def _touches_cuda(tensors: list[Tensor], kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    asked = device is not None and torch.device(device).type == "cuda"
    return asked or any(isinstance(one, FakeTensor) for one in tensors)


def _check_devices(func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
    """As CUDA has it: the host's tensors are refused but for numbers of no dimension, which are passed by value.

    An index on the host is refused as well; CUDA would take it, and wait for a copy.
    """
    if func in _COPIES:
        return
    generator = next((one for one in (*args, *kwargs.values()) if isinstance(one, torch.Generator)), None)
    if generator is not None and generator.device.type != "cuda":
        raise MixedDevicesError(f"{func}: a generator on {generator.device} for a tensor on CUDA")
    host = [one for one in tensors if not isinstance(one, FakeTensor)]
    if not host or len(host) == len(tensors):
        return
    written = list(tensors_of(written_by(func, args)))
    if any(one.ndim or any(one is value for value in written) for one in host):
        shapes = [("CUDA" if isinstance(one, FakeTensor) else "CPU", tuple(one.shape)) for one in tensors]
        raise MixedDevicesError(f"{func} takes tensors on the CPU and on CUDA: {shapes}")
