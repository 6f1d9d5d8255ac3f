"""A rank's parameters and optimizer state under the names and shapes of the undivided model.

``torch.distributed.checkpoint`` asks such objects for the boxes (ranges of a tensor in all dimensions) that they hold
(https://docs.pytorch.org/docs/stable/distributed.checkpoint.html); nothing is gathered. Boxes that several ranks hold
are written by one of them. A checkpoint therefore does not show which layout it came from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from engine.parallel.data.optimizer import LocalOptimizer
from engine.parallel.data.replica import Extent


@dataclass(frozen=True, slots=True)
class ShardSlice:
    """A box of the whole parameter, and the element of the piece at which its values begin; they are consecutive."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    first: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)


def shard_slices(extent: Extent, count: int) -> list[ShardSlice]:
    """The boxes of a piece of ``count`` elements, at most 2 n - 1 of them for n dimensions, in the piece's order."""
    boxes, first = [], 0
    for offsets, sizes in _boxes_of_range(extent.sizes, extent.start, extent.start + count):
        shifted = tuple(a + b for a, b in zip(extent.offsets, offsets, strict=True))
        boxes.append(ShardSlice(shifted, sizes, first))
        first += math.prod(sizes)
    return boxes


def _boxes_of_range(
    sizes: tuple[int, ...], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Offsets and sizes of: the rest of a first row, whole rows, the beginning of a last row."""
    if start >= stop:
        return
    if len(sizes) == 1:
        yield (start,), (stop - start,)
        return
    row = math.prod(sizes[1:])
    head, tail = min(stop, -(-start // row) * row), stop // row * row
    if start < head:
        yield from _boxes_in_row(sizes, start, head)
    if head < tail:
        inner_sizes = sizes[1:]
        yield (head // row, *(0 for _ in inner_sizes)), ((tail - head) // row, *inner_sizes)
    if max(head, tail) < stop:
        yield from _boxes_in_row(sizes, max(head, tail), stop)


def _boxes_in_row(
    sizes: tuple[int, ...], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Offsets and sizes of the boxes of a range that lies inside one row."""
    row = math.prod(sizes[1:])
    place = start // row
    for offsets, inner in _boxes_of_range(sizes[1:], start - place * row, stop - place * row):
        yield (place, *offsets), (1, *inner)


#: Name -> what this rank holds of it: a ``Part``, or a whole tensor of dimension 0.
State = dict[str, "Part | Tensor"]
MEMORY = "compression."


class Part:
    """Boxes of one tensor of the undivided model, whose values lie in ``flat`` one after the other. One that
    ``may_start_anew`` is left as it is by a checkpoint that holds none of its size.
    """

    def __init__(self, extent: Extent, flat: Tensor, may_start_anew: bool = False) -> None:
        self.extent, self.flat, self.may_start_anew = extent, flat, may_start_anew
        self._boxes = {torch.Size(box.offsets): box for box in shard_slices(extent, flat.numel())}

    def size(self) -> torch.Size:
        """Shape of the whole."""
        return torch.Size(self.extent.shape)

    def replace_values(self, flat: Tensor) -> Part:
        """This part with the values of another flat tensor."""
        return Part(self.extent, flat, self.may_start_anew)

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.flat)
        return [
            WriteItem(
                MetadataIndex(name, offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(_chunk(box), properties, self.size()),
            )
            for offsets, box in self._boxes.items()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [_chunk(box) for box in self._boxes.values()]

    def box_values(self, index: MetadataIndex) -> Tensor:
        """The values of one box, in its shape; they share the part's memory."""
        assert index.offset is not None, f"{index.fqn}: a part is asked for without its place"
        box = self._boxes[index.offset]
        return self.flat[box.first : box.first + box.count].view(box.sizes)


def state_of(optimizer: LocalOptimizer, before_outer: bool = False) -> State:
    """What this rank goes on from, sharing its memory: ``model.NAME``, ``optimizer.NAME.exp_avg`` and its like, and
    ``compression.NAME.RANK`` for what it left out of gradients.

    Replicas of an outer loop differ: those after the first add their place to names, as ``@1of4``, and ``outer.NAME``
    is what the loop carries. With ``before_outer`` it is the state of a run that had no such loop.
    """
    if not before_outer:
        state = state_of(optimizer, before_outer=True)
        named: State = {f"{name}{optimizer.place}": value for name, value in state.items()}
        for name, extent, values in optimizer.outer_state():
            named[f"outer.{name}"] = values if extent is None else Part(extent, values)
        return named
    state = {}
    for piece in optimizer.pieces:
        state[f"model.{piece.name}"] = Part(piece.extent, piece.weight.detach().view(-1))
        for key, tensor in optimizer.state_of(piece).items():
            part = Part(piece.extent, tensor.view(-1)) if tensor.ndim else tensor
            state[f"optimizer.{piece.name}.{key}"] = part
    for memory in optimizer.memories:
        part = Part(memory.extent, memory.values.view(-1), memory.may_start_anew)
        state[f"{MEMORY}{memory.name}"] = part
    return state


class Snapshot:
    """A copy of a state in host memory; made again in the same place, pinned where the state is on a GPU."""

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    def take(self, state: State) -> State:
        """Copy every value; returns a state that does not change any more."""
        copied: State = {}
        for name, value in state.items():
            source = value.flat if isinstance(value, Part) else value
            copy = self._copies.get(name)
            if copy is None or copy.shape != source.shape:
                pinned = source.is_cuda
                copy = self._copies[name] = torch.empty_like(source, device="cpu", pin_memory=pinned)
            copy.copy_(source, non_blocking=True)
            copied[name] = value.replace_values(copy) if isinstance(value, Part) else copy
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return copied


def box_values(value: Part | Tensor, index: MetadataIndex) -> Tensor:
    """What lies at a place of a state's value."""
    return value.box_values(index) if isinstance(value, Part) else value


def _chunk(box: ShardSlice) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))
