"""Ports over links that differ from pair to pair, and links that several devices share.

Each place has ports of its own, as on a cluster's equal links. What several devices share, such as what a host's ranks
have together or the bridge between two islands, has a port out and one in for all of them. A message takes as long as
the slowest link on its way; a ring as long as the slowest of its hops, all of which go at the same time. What the ranks
of each place send among themselves goes at the same time in all places.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuning.predict.model.hardware import Link
from tuning.predict.placement.links import Bools, Ints, Links, SharedLink
from tuning.predict.simulation.machine import Machine, Ports, Route

#: A message of so many bytes tells a rate.
_PROBE = 1e6


def ports_of(machine: Machine, places: int, width: int, replicas: int = 1) -> Ports:
    """Those of a machine, for places of ``replicas`` pipelines that lie side by side.

    Raises:
        ValueError: a rank has no device, or links are of another number of devices.
    """
    if machine.links is None:
        return Ports(machine, places, width)
    return SharedPorts(machine, machine.links, places, width, replicas)


class SharedPorts(Ports):
    """The ports of places of ``width`` ranks each, and those of the links that devices share. Where groups on one
    island have links of their own, places have ports of their own to these, too.
    """

    def __init__(self, machine: Machine, links: Links, places: int, width: int, replicas: int = 1) -> None:
        if links.devices < places * width:
            raise ValueError(f"links: {places * width:,} ranks need a device each of {links.devices:,}")
        super().__init__(machine, places, width)
        self._links, self._replicas = links, replicas
        second = () if links.inside is None else links.inside.shared
        #: What devices share, and whether it is of the links of groups on one island.
        self._on_the_way = [(link, False) for link in links.shared] + [(link, True) for link in second]
        self._first_shared = len(self.free)
        self._first_second = self._first_shared + 2 * len(self._on_the_way)
        link_ports = 2 * len(self._on_the_way) + (0 if links.inside is None else 2 * places)
        self.free += [0.0] * link_ports
        self.bookings += [self.bookings[0]] * link_ports

    def same_node(self, source: int, target: int) -> bool:
        """Whether two devices are in one node."""
        return self._links.nodes[source] == self._links.nodes[target]

    def link(self, source: int, target: int) -> Link:
        """What joins two devices, for one message at a time."""
        sources, targets = np.array([source]), np.array([target])
        return self._slowest_link(sources, targets, np.array([False]))

    def slowest(self, devices: Sequence[int]) -> Link:
        """The link of a ring through devices, in their order, that takes longest for many bytes."""
        return self._ring(np.array([devices]))

    def group_link(self, places: Sequence[int], axis: str, size: int) -> Link:
        """The groups of all places send at once over what they share; tp lies side by side, what is with it in a place
        across.
        """
        devices = np.array([self.devices(place) for place in range(self._places)])
        blocks = devices.reshape(self._places, -1, size) if devices.shape[1] % size == 0 else devices[:, None]
        if axis != "tp" and devices.shape[1] % size == 0:
            blocks = devices.reshape(self._places, size, -1).swapaxes(1, 2)
        group_size, ring = blocks[0].size, blocks.shape[2]
        near = self._links.share_island(blocks).reshape(-1).repeat(ring)
        in_group = np.isin(np.arange(self._places), list(places)).repeat(group_size)
        return self._slowest_link(blocks.ravel(), np.roll(blocks, -1, axis=2).ravel(), near, in_group)

    def meeting(self, places: Sequence[int], ranks: int = 1) -> tuple[Link, tuple[int, ...], float]:
        """The link of rings through places, all of whose ranks send at once, and the ports that they keep. A ring has
        so many ``ranks`` of each place; those of tp, which lie side by side, are in rings of their own.
        """
        devices = np.array([self.devices(place) for place in places])
        ranks = ranks if devices.shape[1] % ranks == 0 else 1
        columns = devices.reshape(len(places), ranks, -1).transpose(2, 0, 1)
        rings = columns.reshape(-1, len(places) * ranks)
        inside = all(self.same_node(int(rings[0, 0]), int(place)) for place in rings.ravel())
        near = self._links.share_island(rings)
        ports = dict.fromkeys(
            port
            for place in places
            for second in set(near.tolist())
            for port in self._island_ports(place, inside, second)
        )
        hops = rings.ravel(), np.roll(rings, -1, axis=1).ravel(), near.repeat(rings.shape[1])
        ports |= dict.fromkeys(port for port, _, _ in self._crossed_ports(*hops))
        return self._ring(rings), tuple(ports), 1.0

    def ports(self, place: int, inside: bool) -> tuple[int, int]:
        """Out and in, of the place alone."""
        first = 4 * place + (0 if inside else 2)
        return first, first + 1

    def _island_ports(self, place: int, inside: bool, near: bool) -> tuple[int, int]:
        """The same, of what groups on one island have, if that is near."""
        if inside or not near or self._links.inside is None:
            return self.ports(place, inside)
        first = self._first_second + 2 * place
        return first, first + 1

    def _ring(self, rings: Ints) -> Link:
        """Of hops of rings [rings, devices], all of which go at the same time."""
        if rings.shape[1] == 1:
            return Link(0.0, float("inf"))
        near = self._links.share_island(rings).repeat(rings.shape[1])
        return self._slowest_link(rings.ravel(), np.roll(rings, -1, axis=1).ravel(), near)

    def _slowest_link(self, sources: Ints, targets: Ints, near: Bools, in_group: Bools | None = None) -> Link:
        """What the slowest of messages that go at the same time reaches, or of those ``in_group``; of groups on one
        island, where ``near``.
        """
        alpha = self._links.alphas(sources, targets, near)
        transfer_seconds = self._links.seconds(sources[None], targets[None], _PROBE, near[None])[0] - alpha
        if in_group is not None:
            alpha, transfer_seconds = alpha[in_group], transfer_seconds[in_group]
        return Link(float(alpha.max()), _PROBE / float(transfer_seconds.max()))

    def _route(self, source: int, target: int) -> Route:
        sources, targets = np.array(self.devices(source)), np.array(self.devices(target))
        inside = self.same_node(self.device(source), self.device(target))
        pipeline = range(source % self._replicas, self._places, self._replicas)
        near = self._links.share_island(np.array([self.devices(place) for place in pipeline]).T)
        whole = self._slowest_link(sources, targets, near)
        shared = tuple(
            (port, count / port_link.bytes_per_second)
            for port, port_link, count in self._crossed_ports(sources, targets, near)
        )
        second = bool(near.all())
        out, into = (
            self._island_ports(source, inside, second)[0],
            self._island_ports(target, inside, second)[1],
        )
        return Route(whole.alpha_seconds, 1.0 / whole.bytes_per_second, out, into, shared)

    def _crossed_ports(self, sources: Ints, targets: Ints, near: Bools) -> list[tuple[int, SharedLink, int]]:
        """Shared ports that messages go through: number, link and how many go through at once."""
        crossed, has_second = [], self._links.inside is not None
        for number, (link, second) in enumerate(self._on_the_way):
            uses = near if second else ~near | (not has_second)
            leaving, entering = np.isin(sources, link.devices) & uses, np.isin(targets, link.devices) & uses
            ways = (leaving & ~entering, entering & ~leaving)
            for way, count in enumerate(int(way.sum()) for way in ways):
                if count:
                    crossed.append((self._first_shared + 2 * number + way, link, count))
        return crossed
