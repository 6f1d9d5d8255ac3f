"""Accelerators, links and clusters as data: what a device computes, holds and sends. Pure.

A link is described by T(S) = alpha + S / beta for a message of S bytes in one direction (Hockney's model). All rates
are per device and direction: a node whose devices share a network card has its rate divided among them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.run.calibration.host_links import HostLinks
from profilers.model.links import Links

#: Formats of numbers that an accelerator may have a rate for.
FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device. ``peak_flops``: dense FLOP/s by format, without sparsity; ``memory_bandwidth`` in bytes/s.

    ``products`` and ``attention`` are the share of its peak that kernels reach on it, in times of an A100's.
    ``sources`` says for each figure where it comes from.
    """

    name: str
    peak_flops: Mapping[str, float]
    memory_bytes: int
    memory_bandwidth: float
    sources: Mapping[str, str] = field(default_factory=dict)
    products: float = 1.0
    attention: float = 1.0


@dataclass(frozen=True, slots=True)
class Link:
    """Seconds of a message: ``alpha_seconds`` + bytes / ``bytes_per_second``, in one direction, per device."""

    alpha_seconds: float
    bytes_per_second: float

    def seconds(self, bytes_: float) -> float:
        """Of one message."""
        return self.alpha_seconds + bytes_ / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class BandwidthMeasurement:
    """What one ``operation`` of ``message_bytes`` reached: ``points`` are nodes and bytes/s, by rising nodes."""

    operation: str
    message_bytes: float
    points: tuple[tuple[int, float], ...]

    def interpolate(self, nodes: float) -> float:
        """Bytes/s over so many nodes: straight between points on logarithmic axes, level outside of them."""
        before = max((point for point in self.points if point[0] <= nodes), default=self.points[0])
        after = min((point for point in self.points if point[0] >= nodes), default=self.points[-1])
        if before[0] == after[0]:
            return before[1]
        share = math.log(nodes / before[0]) / math.log(after[0] / before[0])
        return before[1] * math.pow(after[1] / before[1], share)


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that are alike: ``devices`` in each, a link inside a node and one between nodes, on a named network.

    ``pairs`` joins devices 2 k and 2 k + 1 of a node where those share a package.
    """

    nodes: int
    devices: int
    accelerator: Accelerator
    inside: Link
    between: Link
    network: str
    pairs: Link | None = None

    @property
    def size(self) -> int:
        """Devices in all."""
        return self.nodes * self.devices


@dataclass(frozen=True, slots=True)
class Cluster:
    """Groups of nodes, and the link that joins them, which one group alone does not need.

    Devices are numbered group by group and node by node. ``measured`` are collectives by number of nodes;
    ``collectives`` those that a calibration timed, by operation and group size; ``copies`` between host and device;
    ``host_links`` what joins each two of its nodes, where that was measured.
    """

    name: str
    groups: tuple[Group, ...]
    across: Link | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    measured: tuple[BandwidthMeasurement, ...] = ()
    collectives: Links = field(default_factory=dict)
    copies: Mapping[str, Link] = field(default_factory=dict)
    host_links: HostLinks | None = None

    @property
    def size(self) -> int:
        """Devices in all."""
        return sum(group.size for group in self.groups)

    def group_of(self, device: int) -> int:
        """The group that a device belongs to."""
        for index, group in enumerate(self.groups):
            if device < group.size:
                return index
            device -= group.size
        raise IndexError(device)

    def node_of(self, device: int) -> tuple[int, int]:
        """The group of a device, and the node inside of it."""
        index = self.group_of(device)
        first = sum(group.size for group in self.groups[:index])
        return index, (device - first) // self.groups[index].devices

    def link(self, source: int, target: int) -> Link:
        """What joins two devices."""
        group, node = self.node_of(source)
        if (group, node) == self.node_of(target):
            return self._inside_link(self.groups[group], source, target)
        if group == self.node_of(target)[0]:
            return self.groups[group].between
        assert self.across is not None, f"no link joins the groups of cluster {self.name}"
        return self.across

    def _inside_link(self, group: Group, source: int, target: int) -> Link:
        first = sum(before.size for before in self.groups[: self.group_of(source)])
        paired = (source - first) % group.devices // 2 == (target - first) % group.devices // 2
        return group.pairs if paired and group.pairs else group.inside
