"""What a step is played on: devices, links with contention, stragglers and jitter.

Every device has ports: out and in for its node, out and in for the network. A port has a rate, which is shared:

- messages go through a port one after the other, in the order in which they are sent;
- so do collectives, in the order in which the last of their ranks calls them; they keep the ports of all;
- a message and a collective that meet on a port have half of its rate each, and the one takes as much longer as the
  other needs of the shared time. So a message never stands behind gradients, and nothing is sent for free.

A message has both of its ports at once, at the rate of the slower link. The latency ``alpha_seconds`` is on top and
keeps no port. A collective among equal links takes seconds by alpha and beta. Links that differ from pair to pair, or
that several devices share (``Machine.links``), are those of ``shared_ports``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from engine.config.errors import InputError
from profilers.records.operations import operation_of
from tuning.predict.model.hardware import Cluster, Link
from tuning.predict.placement.links import Links

#: A link that takes no time.
INSTANT = Link(0.0, float("inf"))
_OUT, _IN, _NETWORK = 0, 1, 2


@dataclass(frozen=True)
class Machine:
    """A cluster and where each rank is on it: ``device_of[rank]``; None numbers devices as ranks.

    ``network_card`` says whose the ports to the network are: each device's own, at the link's rate, or shared by all
    devices of a node, at as many times that rate. ``slower`` gives ranks a factor on all their work (a lockstep group
    is as slow as its slowest rank). ``jitter`` is the standard deviation of a random factor with mean 1 on every
    piece of work, drawn from a log-normal distribution by ``seed``. ``links`` are what joins each two devices and what
    several share, in place of the cluster's; ``network_card`` is not read then.
    """

    cluster: Cluster
    device_of: tuple[int, ...] | None = None
    network_card: Literal["device", "node"] = "device"
    slower: Mapping[int, float] = field(default_factory=dict)
    jitter: float = 0.0
    seed: int = 0
    links: Links | None = None


class Route(NamedTuple):
    """How one place reaches another: latency, seconds a byte, and the ports on the way; ports that others share, too,
    with the seconds for which a byte keeps each.
    """

    alpha: float
    seconds_per_byte: float
    out_port: int
    in_port: int
    shared: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class PortUse:
    """What the last collective on a port has of it: ``busy_until``, when it is through, ``latency`` before the ranks
    know.

    It has half of the rate until ``slowed``, on whichever of its ports that is: it goes as fast as its slowest one.
    """

    busy_until: float = 0.0
    latency: float = 0.0
    slowed: float = 0.0

    @property
    def end(self) -> float:
        """When its ranks go on."""
        return self.busy_until + self.latency

    def make_room(self, begin: float, seconds: float) -> None:
        """A message that takes so many seconds alone begins on one of its ports."""
        shared_seconds = min(seconds, self.busy_until - begin)
        if shared_seconds > 0.0:
            end = begin + 2 * shared_seconds
            self.busy_until += max(0.0, end - max(begin, self.slowed)) / 2
            self.slowed = max(self.slowed, end)


class Ports:
    """The ports of places of ``width`` ranks each; a place's first device stands for it."""

    def __init__(self, machine: Machine, places: int, width: int) -> None:
        ranks = places * width
        devices = machine.device_of if machine.device_of is not None else tuple(range(ranks))
        if len(devices) < ranks or any(not 0 <= device < machine.cluster.size for device in devices[:ranks]):
            size = machine.cluster.size
            raise ValueError(
                f"device_of: {ranks:,} ranks need a device each of {machine.cluster.name}'s {size:,}"
            )
        self._cluster, self._shared, self._width = machine.cluster, machine.network_card == "node", width
        self._devices = devices
        self._node = lru_cache(maxsize=None)(machine.cluster.node_of)
        self._nodes: dict[tuple[int, int], int] = {}
        count = 4 * (places + machine.cluster.size)
        #: When each port is through with its messages, and its last collective.
        self.free, self.bookings = [0.0] * count, [PortUse()] * count
        self._places = places
        self.route = lru_cache(maxsize=None)(self._route)

    def device(self, place: int) -> int:
        """The first device of a place."""
        return self._devices[place * self._width]

    def devices(self, place: int) -> tuple[int, ...]:
        """All devices of a place."""
        return self._devices[place * self._width : (place + 1) * self._width]

    def same_node(self, source: int, target: int) -> bool:
        """Whether two devices are in one node."""
        return bool(self._node(source) == self._node(target))

    def link(self, source: int, target: int) -> Link:
        """What joins two devices."""
        group, node = self._node(source)
        other_group, other_node = self._node(target)
        if group == other_group:
            of_node = self._cluster.groups[group]
            return of_node.inside if node == other_node else of_node.between
        return self._cluster.link(source, target)

    def slowest(self, devices: Sequence[int]) -> Link:
        """The link of a ring through devices, in their order, that takes longest for many bytes."""
        pairs = zip(devices, (*devices[1:], devices[0]), strict=True)
        links = {self.link(source, target) for source, target in pairs if source != target} or {INSTANT}
        slow = min(links, key=lambda link: link.bytes_per_second)
        return Link(max(link.alpha_seconds for link in links), slow.bytes_per_second)

    def group_link(self, places: Sequence[int], axis: str, size: int) -> Link:
        """The slowest link among the ranks of a place, of several places that go at the same time; for groups of so
        many ranks of an axis.
        """
        links = {self.slowest(self.devices(place)) for place in places}
        return min(links, key=lambda link: link.bytes_per_second)

    def send(self, source: int, target: int, bytes_: float, now: float) -> float:
        """When a message arrives; collectives on its way make room for it."""
        route = self.route(source, target)
        if route.shared:
            return self._send_through(route, bytes_, now)
        alpha, seconds_per_byte, out, into, _ = route
        free, sending, receiving = self.free, self.bookings[out], self.bookings[into]
        begin, seconds = max(now, free[out], free[into]), bytes_ * seconds_per_byte
        shared = min(seconds, max(sending.busy_until, receiving.busy_until) - begin)
        if shared > 0.0:
            sending.make_room(begin, seconds)
            if receiving is not sending:
                receiving.make_room(begin, seconds)
            seconds += shared
        free[out] = free[into] = begin + seconds
        return begin + seconds + alpha

    def _send_through(self, route: Route, bytes_: float, now: float) -> float:
        """Of a message whose way leads through ports that others share; each is kept as long as its rate asks for."""
        free, shared_ports = self.free, [port for port, _ in route.shared]
        ports = (route.out_port, route.in_port, *shared_ports)
        begin, seconds = max(now, *[free[port] for port in ports]), bytes_ * route.seconds_per_byte
        met = {id(booking): booking for booking in (self.bookings[port] for port in ports)}.values()
        shared_seconds = max(0.0, min(seconds, max(booking.busy_until for booking in met) - begin))
        for booking in met:
            booking.make_room(begin, seconds)
        seconds += shared_seconds
        free[route.out_port] = free[route.in_port] = begin + seconds
        for port, seconds_per_byte in route.shared:
            free[port] = begin + bytes_ * seconds_per_byte + shared_seconds
        return begin + seconds + route.alpha

    def book(self, ports: Sequence[int], begin: float, seconds: float, latency: float) -> PortUse:
        """A collective on all of these ports, behind those that are there, and beside their messages."""
        begin = max(begin, *[self.bookings[port].busy_until for port in ports])
        shared_seconds = min(seconds, max(0.0, max(self.free[port] for port in ports) - begin))
        booking = PortUse(begin + seconds + shared_seconds, latency)
        for port in ports:
            self.bookings[port] = booking
        return booking

    def meeting(self, places: Sequence[int], ranks: int = 1) -> tuple[Link, tuple[int, ...], float]:
        """The link of a ring through places, of so many ``ranks`` of each, the ports that it keeps, and how much of
        their time a byte takes.
        """
        devices = [self.device(place) for place in places]
        inside = all(self.same_node(devices[0], device) for device in devices[1:])
        ports = dict.fromkeys(port for place in places for port in self.ports(place, inside))
        return self.slowest(devices), tuple(ports), max(self.share(place, inside) for place in places)

    def ports(self, place: int, inside: bool) -> tuple[int, int]:
        """Out and in."""
        if inside or not self._shared:
            first = 4 * place + (0 if inside else _NETWORK)
        else:
            node = self._nodes.setdefault(self._node(self.device(place)), len(self._nodes))
            first = 4 * (self._places + node)
        return first + _OUT, first + _IN

    def share(self, place: int, inside: bool) -> float:
        """Part of a port's seconds that a byte of each rank of a place takes, relative to the link's rate."""
        if inside or not self._shared:
            return 1.0
        group = self._cluster.groups[self._node(self.device(place))[0]]
        used = min(self._width, group.devices)
        return used / group.devices

    def _route(self, source: int, target: int) -> Route:
        sender, receiver = self.device(source), self.device(target)
        link, inside = self.link(sender, receiver), self._node(sender) == self._node(receiver)
        share = max(self.share(source, inside), self.share(target, inside))
        out, into = self.ports(source, inside)[_OUT], self.ports(target, inside)[_IN]
        return Route(link.alpha_seconds, share / link.bytes_per_second, out, into)


def transfer(operation: str, ranks: int, bytes_: float, link: Link) -> tuple[float, float]:
    """Seconds that keep the links busy, and seconds of latency, of S bytes by nccl-tests' definitions.

    A pass sends (n - 1) / n S from each rank in n - 1 messages (nccl-tests, doc/PERFORMANCE.md). As a double tree (NCCL
    2.4) an all-reduce sends as much, with fewer messages one after the other. A send is one message of S bytes; a
    receive is its sender's.

    Raises:
        InputError: nobody has said how many passes the operation is.
    """
    definition = operation_of(operation)
    if ranks == 1 or (definition is not None and definition.priced_at_other_end):
        return 0.0, 0.0
    if definition is not None and definition.point_to_point:
        return bytes_ / link.bytes_per_second, link.alpha_seconds
    if definition is None or definition.passes is None:
        remedy = "its entry in profilers/records/operations.py has no passes, so no step with it is simulated"
        raise InputError("config", f"{operation}: not modelled", remedy)
    passes, others = definition.passes, ranks - 1
    steps = passes * others
    if definition.tree_messages is not None:
        steps = min(steps, definition.tree_messages(ranks))
    return passes * others / ranks * bytes_ / link.bytes_per_second, steps * link.alpha_seconds
