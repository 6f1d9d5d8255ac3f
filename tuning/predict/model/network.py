"""Seconds of collectives and messages by alpha and beta, where a group's ranks lie on nodes. Pure, on arrays.

Ranks are numbered with tp fastest, then cp, dp and pp, and fill one node after the other: so do the engine, Megatron
and nanotron. A ring of n ranks sends 2 (n - 1) / n of an all-reduce's bytes over its slowest link, an all-gather or
reduce-scatter half of that (R. Thakur et al., IJHPCA 2005). Groups that share a node's network divide its rate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuning.predict.model.cases import Array, Cases
from tuning.predict.model.constants import Constants


class Links(NamedTuple):
    """Bytes/s inside a node, and between nodes with all of a node's devices sending: of one device, in one direction.

    A column where cases run on several.
    """

    inside: float | Array
    between: float | Array

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Links:
        """Of some rows."""
        return Links(*(rate[rows] if isinstance(rate, np.ndarray) else rate for rate in self))


class GroupTopology(NamedTuple):
    """How a group of ranks lies: its size, and how many nodes it spans."""

    ranks: Array
    nodes: Array

    @property
    def members(self) -> Array:
        """Of its ranks those on one node."""
        return self.ranks / self.nodes


def reach(cases: Cases, ranks: Array, inner: Array) -> GroupTopology:
    """Of groups of ``ranks`` that lie ``inner`` ranks apart."""
    return reach_on_nodes(cases.devices_per_node, ranks, inner)


def reach_on_nodes(devices: Array, ranks: Array, inner: Array) -> GroupTopology:
    """The same on nodes of so many devices."""
    return GroupTopology(ranks, ranks / np.clip(devices / inner, 1.0, ranks))


def ring_rate(group: GroupTopology, links: Links, constants: Constants) -> Array:
    """Bytes/s of each rank in a ring: each of a node's members brings its own link to other nodes."""
    inside = links.inside * constants.inside_share
    between = links.between * constants.between_share * group.members
    return np.where(group.nodes > 1, np.minimum(inside, between), inside)


def tree_start(group: GroupTopology, constants: Constants) -> Array:
    """Seconds that a message takes to start through a tree, inside of nodes and between them."""
    between: Array = constants.between_seconds * np.log2(np.maximum(group.nodes, 1))
    return _inside_start(group, constants) + between


def _inside_start(group: GroupTopology, constants: Constants) -> Array:
    seconds: Array = constants.inside_seconds * np.log2(np.maximum(group.members, 1))
    return seconds


def ring(
    group: GroupTopology,
    bytes_: Array,
    links: Links,
    constants: Constants,
    turns: float = 2.0,
    calls: float | Array | None = None,
) -> Array:
    """Of a collective over ``bytes_`` in all: ``turns`` is 2 for an all-reduce, 1 for its halves; 0 for one rank.

    An all-reduce over nodes is a tree, that starts in the logarithm of its ranks; its halves are rings, in which a
    call passes all ranks one after the other (NCCL 2.4 and later). Of ``calls`` in a row each waits for hops from node
    to node alone: inside a node one begins while the one before it ends.
    """
    rate, tree = ring_rate(group, links, constants), tree_start(group, constants)
    hops = np.maximum(group.ranks if calls is None else group.nodes, 1) - 1
    passed = np.where(group.nodes > 1, constants.hop_seconds * hops, _inside_start(group, constants))
    start = (1.0 if calls is None else calls) * (tree if turns > 1 else passed)
    moved = turns * (group.ranks - 1) / group.ranks * bytes_ / rate
    return np.where(group.ranks > 1, moved + turns * start, 0.0)


def message(apart: Array, cases: Cases, bytes_: Array, links: Links, constants: Constants) -> Array:
    """Of one point-to-point message between ranks that are ``apart`` in number."""
    crosses = apart >= cases.devices_per_node
    inside, between = links.inside, links.between
    share = constants.message_share
    near = constants.inside_seconds + bytes_ / (inside * share)
    far = constants.between_seconds + bytes_ / (between * share)
    return np.where(crosses, far, near)


def far_hops(cases: Cases) -> Array:
    """Share of a pipeline's hops that go from node to node."""
    apart = cases.tp * cases.cp * cases.dp
    borders = np.ceil(cases.pp * apart / cases.devices_per_node) - 1
    return np.where(cases.pp > 1, np.minimum(borders / np.maximum(cases.pp - 1, 1), 1.0), 0.0)
