"""What joins each two devices: from a cluster, from a lab's shape, or as it was measured. Pure, on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine.config.errors import InputError
from engine.config.formulas.network import DATA, Shape, shape_of
from engine.config.run_config import RunConfig
from engine.run.calibration.host_links import HostLinks
from tuning.predict.model.hardware import Cluster, Link

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SharedLink:
    """Devices that reach all others through one link, which they share: bytes/s in each direction."""

    devices: tuple[int, ...]
    bytes_per_second: float


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Links of n devices. ``alpha_seconds`` and ``bytes_per_second`` are [n, n], of a message from row to column.

    ``nodes`` and ``islands`` tell for each device on which node and in which network it is. What several devices
    share is in ``shared``, on top of the links that each two of them have for themselves. ``inside`` are links of
    their own for groups whose members are all on one island; without them these take the same as all others.
    """

    alpha_seconds: Floats
    bytes_per_second: Floats
    nodes: tuple[int, ...]
    islands: tuple[int, ...]
    shared: tuple[SharedLink, ...] = ()
    inside: Links | None = None

    @property
    def devices(self) -> int:
        """How many there are."""
        return len(self.nodes)

    def seconds(self, sources: Ints, targets: Ints, bytes_: float, groups: Bools | None = None) -> Floats:
        """Of messages that are sent at the same time; devices [orders, messages] give seconds of that shape.

        A message takes as long as its own link needs, or as a shared one needs for all that goes through it. Those of
        groups on one island, where ``groups`` is true, take the links ``inside``, if there are any.
        """
        if self.inside is None or groups is None:
            return self._seconds(sources, targets, bytes_, np.ones(sources.shape, bool))
        near = self.inside._seconds(sources, targets, bytes_, groups)
        seconds: Floats = np.where(groups, near, self._seconds(sources, targets, bytes_, ~groups))
        return seconds

    def alphas(self, sources: Ints, targets: Ints, groups: Bools) -> Floats:
        """Latencies of messages, in seconds; as in ``seconds``."""
        alphas = self.alpha_seconds[sources, targets]
        return (
            alphas
            if self.inside is None
            else np.where(groups, self.inside.alpha_seconds[sources, targets], alphas)
        )

    def share_island(self, devices: Ints) -> Bools:
        """Whether the members of each group are, devices [..., members]; of shape [...]. Where links ``inside`` join
        islands, it is those, whatever islands all others were measured to make.
        """
        islands = np.array((self.inside or self).islands)[devices]
        is_shared: Bools = (islands == islands[..., :1]).all(axis=-1)
        return is_shared

    def _seconds(self, sources: Ints, targets: Ints, bytes_: float, on_shared: Bools) -> Floats:
        """Of those messages that are ``on_shared``; they alone share links."""
        alpha = self.alpha_seconds[sources, targets]
        seconds: Floats = alpha + bytes_ / self.bytes_per_second[sources, targets]
        for shared_link in self.shared:
            inside = np.zeros(self.devices, bool)
            inside[list(shared_link.devices)] = True
            leaving, entering = inside[sources] & on_shared, inside[targets] & on_shared
            for way in (leaving & ~entering, entering & ~leaving):
                shared_seconds = way.sum(axis=-1, keepdims=True) * bytes_ / shared_link.bytes_per_second
                seconds = np.where(way, np.maximum(seconds, alpha + shared_seconds), seconds)
        return seconds


def cluster_links(cluster: Cluster) -> Links:
    """Of a described cluster, whose rates are per device with all devices of a node sending.

    Raises:
        InputError: there are several groups of nodes and no link that joins them.
    """
    if len(cluster.groups) > 1 and cluster.across is None:
        raise InputError("cluster.across", None, f"no link joins the groups of {cluster.name}; give one")
    sizes = [group.size for group in cluster.groups]
    islands = np.repeat(np.arange(len(sizes)), sizes)
    inside_island = [np.arange(group.size) // group.devices for group in cluster.groups]
    first = np.cumsum([0, *(group.nodes for group in cluster.groups)])
    nodes = np.concatenate([places + first[index] for index, places in enumerate(inside_island)])

    def matrix(name: str) -> Floats:
        group_link = getattr(cluster.across, name, 0.0)
        near, far = (
            np.array([getattr(getattr(group, kind), name) for group in cluster.groups])[islands]
            for kind in ("inside", "between")
        )
        joined = np.where(islands[:, None] == islands, far[:, None], group_link)
        return np.where(nodes[:, None] == nodes, near[:, None], joined)

    alpha, rates = matrix("alpha_seconds"), matrix("bytes_per_second")
    if cluster.host_links is not None:
        return host_links(cluster.host_links, nodes.tolist(), alpha, rates)
    return Links(alpha, rates, tuple(nodes.tolist()), tuple(islands.tolist()))


def host_links(
    measured: HostLinks, hosts: Sequence[int], alpha_seconds: Floats, bytes_per_second: Floats
) -> Links:
    """As hosts were measured, of devices that are on these ``hosts``; what joins two on one host is given.

    Devices of a host share the best that it reached alone, those of an island what its hosts reached together.
    """
    on, islands = np.array(hosts), np.array(measured.islands)
    near = on[:, None] == on
    alpha = np.where(near, alpha_seconds, np.array(measured.alpha_seconds)[on[:, None], on])
    host_rates = np.array(measured.bytes_per_second)
    rates = np.where(near, bytes_per_second, host_rates[on[:, None], on])
    of_device = islands[on]
    shared = [SharedLink(_indices_of(on, host), float(host_rates[host].max())) for host in sorted(set(hosts))]
    shared += [
        SharedLink(_indices_of(of_device, island), rate)
        for island, rate in enumerate(measured.island_bytes_per_second)
        if rate is not None
    ]
    return Links(alpha, rates, tuple(hosts), tuple(of_device.tolist()), tuple(shared))


def lab_links(shape: Shape, ranks: int, inside: Link, payload: float = 1448 / 1514) -> Links:
    """Of a lab with ``ranks`` places, which lie on its hosts as ranks do. Second cards join those of one island.

    ``inside`` is what a host's loopback does, and a link that has no rate. ``payload`` is the part of a rate that is
    not headers: 1,448 bytes of a packet of 1,514.
    """
    hosts = np.array(shape.rank_hosts(ranks))
    islands = np.array([shape.island_of(host) for host in range(shape.hosts)])[hosts]

    def rate(kbit: int) -> float:
        return kbit * 125 * payload if kbit else inside.bytes_per_second

    rates_of_places = np.array([rate(shape.rate_kbit(host)) for host in range(shape.hosts)])[hosts]
    rates = np.minimum(rates_of_places[:, None], rates_of_places)
    rates = np.where(islands[:, None] == islands, rates, np.minimum(rates, rate(shape.between_kbit)))
    rates = np.where(hosts[:, None] == hosts, inside.bytes_per_second, rates)
    kbit = {_indices_of(hosts, host): shape.rate_kbit(host) for host in range(shape.hosts)}
    kbit |= {_indices_of(islands, island): shape.between_kbit for island in range(len(shape.islands))}
    shared = tuple(SharedLink(devices, rate(kbit_rate)) for devices, kbit_rate in kbit.items() if kbit_rate)
    alpha = np.full_like(rates, inside.alpha_seconds)
    links = Links(alpha, rates, tuple(hosts.tolist()), tuple(islands.tolist()), shared)
    if not shape.inside_kbit:
        return links
    second = Shape(shape.islands, (shape.inside_kbit,) * len(shape.islands))
    return replace(links, inside=lab_links(second, ranks, inside, payload))


def lab_of(config: RunConfig) -> Shape | None:
    """A configuration's lab, without second cards where no group sends over them."""
    shape = shape_of(config.lab)
    if shape is None or config.network.inside != DATA:
        return shape
    return replace(shape, inside_kbit=0)


def _indices_of(values: Ints, wanted: int) -> tuple[int, ...]:
    return tuple(np.flatnonzero(values == wanted).tolist())
