"""A range of elements of a flattened tensor as boxes of the tensor itself. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from engine.parallel.extent import Extent


@dataclass(frozen=True, slots=True)
class Box:
    """A box of the whole parameter, and the element of the piece at which its values begin; they are consecutive."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    first: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)


def boxes_of(extent: Extent, count: int) -> list[Box]:
    """The boxes of a piece of ``count`` elements, at most 2 n - 1 of them for n dimensions, in the piece's order."""
    found, first = [], 0
    for offsets, sizes in _cut(extent.sizes, extent.start, extent.start + count):
        shifted = tuple(a + b for a, b in zip(extent.offsets, offsets, strict=True))
        found.append(Box(shifted, sizes, first))
        first += math.prod(sizes)
    return found


def _cut(sizes: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Offsets and sizes of: the rest of a first row, whole rows, the beginning of a last row."""
    if start >= stop:
        return
    if len(sizes) == 1:
        yield (start,), (stop - start,)
        return
    row = math.prod(sizes[1:])
    head, tail = min(stop, -(-start // row) * row), stop // row * row
    if start < head:
        yield from _within(sizes, start, head)
    if head < tail:
        rest = sizes[1:]
        yield (head // row, *(0 for _ in rest)), ((tail - head) // row, *rest)
    if max(head, tail) < stop:
        yield from _within(sizes, max(head, tail), stop)


def _within(
    sizes: tuple[int, ...], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The same inside one row."""
    row = math.prod(sizes[1:])
    place = start // row
    for offsets, inner in _cut(sizes[1:], start - place * row, stop - place * row):
        yield (place, *offsets), (1, *inner)
