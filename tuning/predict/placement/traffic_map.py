"""Which rank stands where, and what goes from one device to another in a step, axis by axis.

Collectives go in rings and all-to-alls by pairs, as placements are priced (``cost``); a pipeline's messages go to the
next place and back, and from the last one to the first where stages are dealt in rounds. Payloads are those of the
rank that sends most (``link_traffic``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.config.errors import InputError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from tuning.predict.placement.cost import AXES, GROUPS, hops, turns
from tuning.predict.placement.link_traffic import volumes_of
from tuning.predict.placement.links import Floats, Links
from tuning.predict.placement.place import links_of
from tuning.predict.target import Target

#: A matrix of more devices than this is not made.
MOST_DEVICES = 1_024


@dataclass(frozen=True, slots=True, eq=False)
class TrafficMap:
    """``device_of`` says for each rank where it stands, ``links`` on which node that is and what joins it to others.

    ``bytes_`` are [devices, devices] a step, from row to column, of each axis that sends something.
    """

    device_of: tuple[int, ...]
    links: Links
    bytes_: dict[str, Floats]

    @property
    def nodes(self) -> list[int]:
        """Numbers of the nodes, ascending."""
        return sorted(set(self.links.nodes))

    def node_bytes(self, axis: str | None = None) -> Floats:
        """Bytes a step from node to node, of one axis or of all; what stays on a node is on the diagonal."""
        places = np.searchsorted(self.nodes, self.links.nodes)
        whole = np.zeros((len(self.nodes), len(self.nodes)))
        for name, matrix in self.bytes_.items():
            if axis in (None, name):
                np.add.at(whole, (places[:, None], places), matrix)
        return whole

    def rates(self) -> Floats:
        """Bytes/s of one device from node to node: between the first two devices that differ, NaN where none do."""
        nodes = np.array(self.links.nodes)
        rates = np.full((len(self.nodes), len(self.nodes)), np.nan)
        for row, node in enumerate(self.nodes):
            for column, other in enumerate(self.nodes):
                sources, targets = np.flatnonzero(nodes == node), np.flatnonzero(nodes == other)
                target = targets[targets != sources[0]][:1]
                if len(target):
                    rates[row, column] = self.links.bytes_per_second[sources[0], target[0]]
        return rates

    def as_dict(self) -> dict[str, Any]:
        """Plain values: bytes a step, and bytes/s of one device's link from node to node."""
        axes = {}
        for axis, matrix in self.bytes_.items():
            nodes = self.node_bytes(axis)
            axes[axis] = {
                "bytes_of_a_rank": float(matrix.sum(axis=1).max()),
                "bytes_between_nodes": float(nodes.sum() - np.trace(nodes)),
                "bytes": float(nodes.sum()),
            }
        return {
            "device_of_rank": list(self.device_of),
            "node_of_device": list(self.links.nodes),
            "axes": axes,
            "between_nodes_bytes": self.node_bytes().tolist(),
            "device_bytes_per_second": [
                [None if np.isnan(rate) else rate for rate in row] for row in self.rates().tolist()
            ],
        }


def traffic_map(config: RunConfig, target: Target) -> TrafficMap:
    """Of a configuration's ranks on a target's devices, placed as it says.

    Raises:
        InputError: there are more than ``MOST_DEVICES``, or not as many devices as ranks.
    """
    layout = layout_of(config)
    count = layout.world_size
    if count > MOST_DEVICES:
        raise InputError(
            "world size", count, f"links are mapped for up to {MOST_DEVICES:,} devices; use fewer nodes"
        )
    target = target.adapt_to_config(config)
    target.check(count)
    links, volumes = links_of(config, target), volumes_of(config)
    device_of = np.array(config.parallel.placement or range(count))
    bytes_by_axis: dict[str, Floats] = {}
    for axis in AXES:
        matrix = np.zeros((links.devices, links.devices))
        if axis in GROUPS:
            for turn in turns(layout, axis, volumes):
                np.add.at(
                    matrix, (device_of[turn.sources], device_of[turn.targets]), turn.bytes_ * turn.times
                )
        else:
            stages = np.arange(count).reshape(layout.pp, -1)
            for before, after, calls in hops(stages, volumes):
                for source, sink in ((before, after), (after, before)):
                    np.add.at(matrix, (device_of[source], device_of[sink]), volumes.pp.bytes_ * calls)
        if matrix.any():
            bytes_by_axis[axis] = matrix
    return TrafficMap(tuple(device_of.tolist()), links, bytes_by_axis)


def traffic_of(config: RunConfig, target: Target) -> TrafficMap | None:
    """The same; None where there are more devices than are mapped, or a single one."""
    return traffic_map(config, target) if 1 < layout_of(config).world_size <= MOST_DEVICES else None
