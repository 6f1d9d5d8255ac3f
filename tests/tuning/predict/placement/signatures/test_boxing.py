"""Transitions on several axes: what a step says it does can be done on every rank's own part, at the table's bytes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.comm.signatures import PARTIAL, REPLICATED, Signature, bytes_between, split
from tuning.predict.placement.signatures.boxing import Axis, Signatures, boxing_cost

EVERY = (split(0), split(1), split(2), REPLICATED, PARTIAL)
Parts = dict[tuple[int, int], NDArray[np.float64]]
SHAPE = (2, 3)


def lay(whole: NDArray[np.float64], lies: Signatures, shape: tuple[int, ...] = SHAPE) -> Parts:
    """What each rank has: parts of a dimension that both axes split are nested, the outer axis first."""
    found = {}
    for rank in itertools.product(*map(range, shape)):
        part = whole
        for at, ranks, one in zip(rank, shape, lies, strict=True):
            if one.kind == "split":
                part = np.array_split(part, ranks, axis=one.dim)[at]
            elif one == PARTIAL:
                part = part * (at + 1) / sum(range(1, ranks + 1))
        found[rank] = part
    return found


def turn(parts: list[NDArray[np.float64]], source: Signature, target: Signature) -> list[NDArray[np.float64]]:
    """What one group makes of its parts: the tensor as far as it can tell, laid as the target."""
    whole = parts[0]
    if source.kind == "split":
        whole = np.concatenate(parts, axis=source.dim)
    elif source == PARTIAL:
        whole = np.sum(parts, axis=0)
    if target.kind == "split":
        return np.array_split(whole, len(parts), axis=target.dim)
    weights = range(1, len(parts) + 1)
    return [whole * (at / sum(weights)) if target == PARTIAL else whole for at in weights]


def turned(parts: Parts, axis: int, source: Signature, target: Signature) -> Parts:
    found: Parts = {}
    for other in range(SHAPE[1 - axis]):
        group = [(at, other) if axis == 0 else (other, at) for at in range(SHAPE[axis])]
        found |= zip(group, turn([parts[rank] for rank in group], source, target), strict=True)
    return found


def same(one: Parts, other: Parts) -> bool:
    return all(one[rank].shape == other[rank].shape and np.allclose(one[rank], other[rank]) for rank in one)


def test_a_step_is_offered_where_groups_can_take_it_by_themselves_and_only_there() -> None:
    """On 2 x 3 ranks, all 25 x 8 changes of one axis: what the groups of that axis make is what each rank is to have.

    A price that no longer way has tells whether a step is offered.
    """
    whole = np.random.default_rng(0).normal(size=(6, 6, 6))
    for lies in itertools.product(EVERY, repeat=2):
        for axis, one in itertools.product((0, 1), EVERY):
            target = (one, lies[1]) if axis == 0 else (lies[0], one)
            if target == lies:
                continue
            can = same(turned(lay(whole, lies), axis, lies[axis], one), lay(whole, target))
            other_axis_is_dear = tuple(Axis(r, 1.0, 0.0 if at == axis else 1e9) for at, r in enumerate(SHAPE))
            cost = boxing_cost(other_axis_is_dear, lies, target, 1.0)
            assert can == (cost < 1e9), (lies, target)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(EVERY, repeat=2)), ids=str)
def test_one_axis_has_the_bytes_of_the_table(source: Signature, target: Signature) -> None:
    assert boxing_cost((Axis(4),), source=(source,), target=(target,), whole_bytes=8.0) == bytes_between(
        source, target, 8.0, 4
    )
    beside = boxing_cost((Axis(1), Axis(4)), (REPLICATED, source), (REPLICATED, target), 8.0)
    assert beside == bytes_between(source, target, 8.0, 4)


def test_a_sum_over_both_axes_is_as_cheap_as_one_of_all_ranks() -> None:
    """Each group scatters its sums before the others add theirs: 2 (8 - 1) tensors, where two all-reduces send 20."""
    axes = Axis(2), Axis(4)
    assert boxing_cost(axes, (PARTIAL, PARTIAL), (REPLICATED, REPLICATED), 1.0) == 14.0
    dear = Axis(2, per_byte=100.0), Axis(4)
    assert boxing_cost(dear, (PARTIAL, PARTIAL), (REPLICATED, REPLICATED), 1.0) == 6.0 + 200.0 + 6.0


def test_a_part_is_sent_where_the_other_axis_splits() -> None:
    axes = Axis(2), Axis(4)
    assert boxing_cost(axes, (split(1), PARTIAL), (split(1), split(0)), 1.0) == 3.0
    # The outer axis has the same sums twice: each half is brought together once and exchanged, 3 + 1 where 6 would do.
    assert boxing_cost(axes, (REPLICATED, PARTIAL), (REPLICATED, split(0)), 1.0) == 4.0


def test_messages_cost_too() -> None:
    axes = Axis(2, 1.0, 10.0), Axis(4, 1.0, 10.0)
    cost = boxing_cost(axes, (PARTIAL, PARTIAL), (REPLICATED, REPLICATED), 1.0)
    assert cost == 10.0 * 2 + 8.0 + 12.0  # two all-reduces of all that each rank has: the fewest messages
