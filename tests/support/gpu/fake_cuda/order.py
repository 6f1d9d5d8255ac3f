"""What has to come after what: an operation that touches memory waits for those that did before, on other streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

from tests.support.gpu.fake_cuda.device import Known, Stream, current_stream


class UnorderedError(AssertionError):
    """Two operations on the same memory, of which neither waits for the other."""


@dataclass
class _Memory:
    """Who touched a storage last. The weak reference keeps its address from being given out again."""

    storage: StorageWeakRef
    made_on: int
    written: tuple[int, int] | None = None
    read: Known = field(default_factory=Known)
    told: set[int] = field(default_factory=set)


class Order:
    """Keeps count for each storage that a device operation touched, the host's included."""

    def __init__(self) -> None:
        self._memories: dict[int, _Memory] = {}
        #: Storages that streams used which they were not made on: those must not be freed too early.
        self._elsewhere: dict[int, _Memory] = {}

    def launched(self, func: Any, args: Any, tensors: Sequence[Tensor], out: Any) -> None:
        """An operator on the current stream, with all the tensors that it takes."""
        if func.is_view:
            return
        stream = current_stream()
        number = stream.launch()
        written = {id(one) for one in tensors_of(written_by(func, args))}
        for tensor in tensors:
            self._touch(func, tensor, stream, number, id(tensor) in written)
        taken = {one.untyped_storage()._cdata for one in tensors}
        for tensor in tensors_of((out,)):
            if isinstance(tensor, FakeTensor) and tensor.untyped_storage()._cdata not in taken:
                self._touch(func, tensor, stream, number, True)
        self._freed(stream)

    def copied(self, target: Tensor, source: Tensor, non_blocking: bool) -> None:
        """Between the host and the device, or within it."""
        stream = current_stream()
        number = stream.launch()
        self._touch("copy_", source, stream, number, False)
        self._touch("copy_", target, stream, number, True)
        on_device = isinstance(target, FakeTensor) and isinstance(source, FakeTensor)
        if not (on_device or non_blocking):
            stream.synchronize()

    def read(self, tensor: Tensor) -> None:
        """The host reads a value, and waits for it."""
        stream = current_stream()
        self._touch("item", tensor, stream, stream.launch(), False)
        stream.synchronize()

    def record_stream(self, tensor: Tensor, stream: Any) -> None:
        """The allocator was told that a stream uses this memory."""
        self._of(tensor, current_stream()).told.add(int(stream.stream_id))

    def host_touches(self, func: Any, tensors: list[Tensor]) -> None:
        """An operator of the host: copies from and to the device that it needs must be over."""
        if func.is_view or not self._memories:
            return
        for tensor in tensors:
            known = self._memories.get(tensor.untyped_storage()._cdata)
            if known is not None and known.written is not None:
                stream, number = known.written
                if Stream.host.get(stream, 0) < number:
                    raise UnorderedError(f"{func} on the host does not wait for the copy that it reads")

    def _touch(self, func: Any, tensor: Tensor, stream: Stream, number: int, writes: bool) -> None:
        memory = self._of(tensor, stream)
        before = [memory.written] if memory.written else []
        before += list(memory.read.items()) if writes else []
        for other, at in before:
            if stream.known.get(other, 0) < at:
                raise UnorderedError(
                    f"{func} on stream {stream.number} does not wait for stream {other}, which "
                    f"{'reads' if memory.written != (other, at) else 'writes'} the same memory"
                )
        if writes:
            memory.written, memory.read = (stream.number, number), Known()
        else:
            memory.read[stream.number] = number
        if memory.made_on != stream.number and isinstance(tensor, FakeTensor):
            self._elsewhere[memory.storage.cdata] = memory

    def _of(self, tensor: Tensor, stream: Stream) -> _Memory:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._memories:
            self._memories[key] = _Memory(StorageWeakRef(storage), stream.number)
        return self._memories[key]

    def _freed(self, stream: Stream) -> None:
        """The allocator gives freed memory to the stream it was made on: what that starts next may write there, and
        has to come after what other streams did.
        """
        for key, memory in list(self._elsewhere.items()):
            if memory.made_on != stream.number or not memory.storage.expired():
                continue
            del self._elsewhere[key], self._memories[key]
            for other, at in (*memory.read.items(), *([memory.written] if memory.written else [])):
                if other not in memory.told and stream.known.get(other, 0) < at:
                    raise UnorderedError(
                        f"memory of stream {stream.number} was freed while stream {other} used it: no record_stream"
                    )


def written_by(func: Any, args: Any) -> list[Any]:
    """The arguments that an operator writes to."""
    both = zip(args, func._schema.arguments, strict=False)
    return [
        value for value, argument in both if argument.alias_info is not None and argument.alias_info.is_write
    ]


def tensors_of(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among an operator's arguments; those in lists, too."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_of(value)
