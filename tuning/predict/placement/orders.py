"""Parallel groups and islands of fast links: who crosses, how much, and the order in which only pipelines do. Pure.

Holmes (arXiv 2312.03549): where only a slow network joins clusters, stages of a pipeline are dealt to clusters, so
that only messages from stage to stage cross, and groups of tp and dp stay where the network is fast.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from engine.config.layout import Layout
from tuning.predict.placement.cost import AXES, GROUPS, Stream, Volumes, turns

#: With more islands than this only the given order of them is tried: 120 orders of 5.
_MAX_ISLANDS = 5


def island_orders(layout: Layout, islands: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Devices of the ranks with whole stages on each island, for each order of islands; none where that cannot be.

    ``islands`` tells for each device its island. Within one, devices follow in their order, so that a stage's
    ranks are as near to each other as they are by number.
    """
    if stages_fit(layout, islands):
        members = [np.flatnonzero(np.array(islands) == one).tolist() for one in dict.fromkeys(islands)]
        orders = itertools.permutations(members) if len(members) <= _MAX_ISLANDS else [members]
        for order in orders:
            yield tuple(itertools.chain.from_iterable(order))


def stages_fit(layout: Layout, islands: Sequence[int]) -> bool:
    """Whether each island has room for a whole number of stages."""
    stage = layout.world_size // layout.pp
    return all(islands.count(one) % stage == 0 for one in set(islands))


def fitting_stages(layout: Layout, islands: Sequence[int]) -> list[int]:
    """The numbers of stages with which whole ones fit on each island, at the same number of ranks."""
    common = math.gcd(*(islands.count(one) for one in set(islands)))
    return [len(islands) // size for size in range(common, 0, -1) if common % size == 0]


def crossing_groups(layout: Layout, devices: Sequence[int], islands: Sequence[int]) -> dict[str, int]:
    """Axis -> how many of its groups have members on more than one island; axes of one rank are left out."""
    found = {}
    for axis in AXES:
        groups = layout.groups(GROUPS.get(axis, axis))
        if len(groups[0]) > 1:
            found[axis] = sum(len({islands[devices[rank]] for rank in group}) > 1 for group in groups)
    return found


def crossing_bytes(
    layout: Layout, devices: Sequence[int], islands: Sequence[int], volumes: Volumes
) -> dict[str, float]:
    """Axis -> payload in bytes per step that leaves one island for another, in both directions together."""
    at = np.array(islands)[list(devices)]
    found = {}
    for axis in GROUPS:
        sent = [
            turn.bytes_ * turn.times * (at[turn.sources] != at[turn.targets]).sum()
            for turn in turns(layout, axis, getattr(volumes, axis))
        ]
        found[axis] = float(sum(sent))
    return found | {"pp": _pipeline_bytes(at.reshape(layout.pp, -1), volumes.pp)}


def _pipeline_bytes(at: np.ndarray, stream: Stream) -> float:
    """There and back, of each micro-batch; ``at`` are islands [stages, pipelines]."""
    return float(2 * stream.calls * stream.bytes_ * (at[:-1] != at[1:]).sum())
