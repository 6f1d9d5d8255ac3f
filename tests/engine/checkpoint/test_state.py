"""A range of a flattened tensor and the boxes that it is cut into."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.checkpoint.state import shard_slices
from engine.parallel.data.replica import Extent, extent_of

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[Extent, int]:
    """A local tensor somewhere in a larger one, and a range of its elements."""
    sizes = draw(SIZES)
    offsets = tuple(draw(st.integers(0, 5)) for _ in sizes)
    shape = tuple(
        offset + size + draw(st.integers(0, 3)) for offset, size in zip(offsets, sizes, strict=True)
    )
    start, stop = sorted(draw(st.integers(0, math.prod(sizes))) for _ in range(2))
    return Extent(shape, offsets, sizes, start), stop - start


@given(ranges())
def test_boxes_hold_exactly_the_elements_of_the_range_in_its_order(drawn: tuple[Extent, int]) -> None:
    extent, count = drawn
    whole = np.full(extent.shape, -1)
    local = np.arange(math.prod(extent.sizes)).reshape(extent.sizes)
    whole[tuple(slice(at, at + size) for at, size in zip(extent.offsets, extent.sizes, strict=True))] = local
    boxes = shard_slices(extent, count)
    found: list[int] = []
    for box in boxes:
        assert box.first == len(found)
        place = tuple(slice(at, at + size) for at, size in zip(box.offsets, box.sizes, strict=True))
        assert whole[place].shape == box.sizes
        found += whole[place].ravel().tolist()
    assert found == list(range(extent.start, extent.start + count))
    assert len(boxes) <= 2 * len(extent.sizes) - 1


@given(SIZES, st.lists(st.integers(0, 1296), max_size=6))
def test_ranges_that_partition_a_tensor_become_boxes_that_do(sizes: tuple[int, ...], cuts: list[int]) -> None:
    whole = math.prod(sizes)
    ends = [0, *sorted(min(cut, whole) for cut in cuts), whole]
    times_held = np.zeros(sizes, dtype=int)
    places = []
    for start, stop in itertools.pairwise(ends):
        for box in shard_slices(Extent(sizes, (0,) * len(sizes), sizes, start), stop - start):
            place = tuple(slice(at, at + size) for at, size in zip(box.offsets, box.sizes, strict=True))
            times_held[place] += 1
            places.append(box.offsets)
    assert (times_held == 1).all()
    assert len(set(places)) == len(places), "boxes are told apart by where they begin"


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        ({None: (4, 3)}, Extent((6, 10, 4), (0, 0, 0), (6, 10, 4))),
        ({1: (2, 1), None: (1, 0)}, Extent((6, 20, 4), (0, 10, 0), (6, 10, 4))),
        ({2: (2, 1), 0: (3, 2)}, Extent((18, 10, 8), (12, 0, 4), (6, 10, 4))),
    ],
)
def test_an_even_cut_says_where_the_local_tensor_lies(
    splits: dict[int | None, tuple[int, int]], expected: Extent
) -> None:
    assert extent_of((6, 10, 4), splits) == expected
