"""What FSDP2 calls in place of ``torch.distributed``: gathers ahead of time, reductions beside backward, and coarse
values in both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.channel import Channel, Group, Waitable
from engine.compression.compressor import GradientCompressor
from engine.compression.interface import Content, Message, Part, Reduction
from engine.compression.methods.row_codec import Integers, RowCodec
from profilers.records.operations import ALL_GATHER

_WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class Slice:
    """One parameter in a rank's part of a message: its values, padding included; vectors go as they are."""

    count: int
    is_vector: bool


@dataclass(frozen=True, slots=True)
class _Place:
    start: int
    stop: int
    first: int
    last: int
    codec: RowCodec | None


class CoarseShards:
    """Gathered parameters in int8 (ZeRO++'s qwZ, arXiv 2306.10209): each matrix in blocks of ``block`` values with a
    scale, rounded to the nearest; the slices themselves stay exact.

    All ranks compute with what they decode, the owner as well: they hold the same bits.
    """

    def __init__(self, slices: Sequence[Slice], ranks: int, block: int, dtype: torch.dtype) -> None:
        self._ranks, self._places = ranks, list[_Place]()
        codec, start, first = RowCodec(Integers(8), block), 0, 0
        for slice in slices:
            plain = slice.is_vector
            size = (
                _WORD_BYTES * -(-slice.count * dtype.itemsize // _WORD_BYTES)
                if plain
                else codec.size(slice.count)
            )
            place = _Place(start, start + slice.count, first, first + size, None if plain else codec)
            self._places.append(place)
            start, first = place.stop, place.last
        self._bytes = first

    def message(self) -> Message:
        """By formula: a byte a value and four a block, from each rank."""
        return Message(ALL_GATHER.name, self._ranks * self._bytes)

    def write(self, shard: Tensor) -> tuple[Tensor, Tensor]:
        """Room for everyone's message, and this rank's, of its slices one after the other."""
        message = torch.empty(self._bytes, dtype=torch.uint8, device=shard.device)
        for place in self._places:
            values, part = shard[place.start : place.stop], message[place.first : place.last]
            if place.codec is None:
                part[: values.nbytes].copy_(values.view(torch.uint8))
            else:
                place.codec.encode(values.to(torch.float32, copy=True), part, None)
        return message.new_empty(self._ranks * self._bytes), message

    def read(self, messages: Tensor, out: Tensor) -> None:
        """Everyone's message into the slices of all ranks."""
        for message, slices in zip(messages.chunk(self._ranks), out.chunk(self._ranks), strict=True):
            for place in self._places:
                values, part = slices[place.start : place.stop], message[place.first : place.last]
                if place.codec is None:
                    values.view(torch.uint8).copy_(part[: values.nbytes])
                else:
                    place.codec.decode(part, values)


class _Messages:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class Gather(_Messages):
    """Parameters of one group of modules; ``coarse`` says how to send them in fewer bytes, if so. ``apart`` has the
    values of each one's slice where each goes by itself.
    """

    coarse: CoarseShards | None = None
    apart: Sequence[int] = ()

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Group, async_op: bool = False
    ) -> Any:
        if self.apart:
            return self._gather_parts(output_tensor, input_tensor, async_op)
        coarse = self.coarse
        out, shard = (output_tensor, input_tensor) if coarse is None else coarse.write(input_tensor)
        read = None if coarse is None else lambda: coarse.read(out, output_tensor)
        if async_op:
            return _GatherWork([self._channel.start_all_gather_into(out, shard)], read)
        self._channel.all_gather_into(out, shard)
        if read is not None:
            read()
        return None

    def _gather_parts(self, out: Tensor, shard: Tensor, async_op: bool) -> Any:
        """A message for each parameter; their places in ``out`` are not side by side, so they are copied there."""
        ranks, under_way = self._channel.size, list[Waitable]()
        gathered = [part.new_empty(ranks * len(part)) for part in shard.split(list(self.apart))]
        for whole, part in zip(gathered, shard.split(list(self.apart)), strict=True):
            if async_op:
                under_way.append(self._channel.start_all_gather_into(whole, part))
            else:
                self._channel.all_gather_into(whole, part)

        def read() -> None:
            places = out.view(ranks, -1).split(list(self.apart), dim=1)
            for place, whole in zip(places, gathered, strict=True):
                place.copy_(whole.view(ranks, -1))

        if async_op:
            return _GatherWork(under_way, read)
        read()
        return None


class _GatherWork(dist.Work):
    """FSDP2 waits for what is of this type alone."""

    def __init__(self, under_way: Sequence[Waitable], read: Callable[[], None] | None) -> None:
        super().__init__()
        self._under_way, self._read = under_way, read

    def wait(self, *_: Any) -> bool:
        """Return when the parameters are there."""
        for work in self._under_way:
            work.wait()
        if self._read is not None:
            self._read()
        return True


class Reductions:
    """Those of all groups of modules, in the order in which backward makes them.

    At most ``depth`` go on beside computation; with 0 each is waited for at once. ``waiting`` is the phase that waits
    count to.
    """

    def __init__(self, waiting: Callable[[], AbstractContextManager[None]]) -> None:
        self.depth, self._waiting = 0, waiting
        self._under_way = deque[tuple[Waitable, Reduction]]()

    def add(self, reduction: Reduction) -> None:
        """Start one; first the oldest ends, if there are too many."""
        while len(self._under_way) > max(self.depth - 1, 0):
            self._end_oldest()
        first = next(reduction, None)
        if first is not None:
            self._under_way.append((first, reduction))
        if not self.depth:
            self.finish()

    def finish(self) -> None:
        """Wait for all."""
        while self._under_way:
            self._end_oldest()

    def _end_oldest(self) -> None:
        under_way, reduction = self._under_way.popleft()
        while under_way is not None:
            with self._waiting():
                under_way.wait()
            under_way = next(reduction, None)  # type: ignore[assignment]


class Reduce(_Messages):
    """Averages gradients over its ranks, and over ``spread`` times as many where the rest hold other experts.

    FSDP2's own factor for that needs an operation that gloo lacks. ``parts`` are the slices of parameters in what it is
    given, one rank's after the other's.
    """

    compressor: GradientCompressor | None = None
    #: Sees a rank's gradients before they are compressed.
    watch: Callable[[Content], None] | None = None

    def __init__(self, channel: Channel, spread: int, reductions: Reductions, index: int) -> None:
        super().__init__(channel)
        self._spread, self._reductions, self._index = spread, reductions, index
        self.parts: tuple[Part, ...] = ()

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Group, op: Any, async_op: bool = False
    ) -> Any:
        if self._spread > 1:
            input_tensor.div_(self._spread)
        compressor, content = self.compressor, self.content(input_tensor)
        if self.watch is not None:
            self.watch(content)
        if compressor is not None and not compressor.is_idle(content):
            self._reductions.add(self._coarse(compressor, content, output_tensor, op))
        elif self._reductions.depth or async_op:
            self._reductions.add(self._plain(output_tensor, input_tensor, op))
        else:
            self._channel.reduce_scatter_into(output_tensor, input_tensor, op)

    def content(self, flat: Tensor) -> Content:
        """Gradients as a compressor takes them."""
        return Content(self._index, flat, self.parts)

    def _plain(self, out: Tensor, x: Tensor, op: Any) -> Reduction:
        yield self._channel.start_reduce_scatter_into(out, x, op)
        del x

    def _coarse(self, compressor: GradientCompressor, content: Content, out: Tensor, op: Any) -> Reduction:
        yield from compressor.reduce(content)
        out.copy_(content.flat.chunk(self._channel.size)[self._channel.rank])
        if op == dist.ReduceOp.SUM:
            out.mul_(self._channel.size)
