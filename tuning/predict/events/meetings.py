"""Collectives between places: they begin when all have come, in the order in which their group calls them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from tuning.predict.events.machine import Booking, Ports
from tuning.predict.events.rings import transfer
from tuning.predict.events.step import Among, Collective, Step
from tuning.predict.hardware import Link


class Group(NamedTuple):
    """Places that meet, the link of their ring, their ports, and how much of a port's time a byte takes."""

    number: int
    places: tuple[int, ...]
    link: Link
    ports: tuple[int, ...]
    share: float


@dataclass(slots=True)
class Meeting:
    """One collective: who has come and from which operation; what it has of its ports, once all have."""

    axis: str
    group: Group
    come: list[tuple[int, int]] = field(default_factory=list)
    booking: Booking | None = None
    waiting: list[int] = field(default_factory=list)

    @property
    def end(self) -> float | None:
        """When it ends, as far as is known now; None while somebody is missing."""
        return None if self.booking is None else self.booking.end


class Meetings:
    """All groups of a step and what they are at."""

    def __init__(self, step: Step, ports: Ports) -> None:
        self._step, self._ports = step, ports
        self._counts: dict[tuple[int, str, Among], int] = {}
        self._open: dict[tuple[int, str, int], Meeting] = {}
        self._last: dict[tuple[int, str], Booking] = {}
        self._groups: dict[tuple[int, ...], Group] = {}
        self.group = lru_cache(maxsize=None)(self._group)

    def come(self, call: Collective, place: int, op: int, now: float) -> Meeting:
        """A place reaches a collective; the last one lets it begin."""
        counted = (place, call.axis, call.among)
        number = self._counts[counted] = self._counts.get(counted, 0) + 1
        group = self.group(call.among, place)
        key = group.number, call.axis, number
        meeting = self._open.get(key)
        if meeting is None:
            meeting = self._open[key] = Meeting(call.axis, group)
        meeting.come.append((place, op))
        if len(meeting.come) == len(group.places):
            del self._open[key]
            meeting.booking = self._begin(call, group, now)
        return meeting

    def _begin(self, call: Collective, group: Group, now: float) -> Booking:
        """Behind the group's last one, and when its ports are through with others'."""
        hold, latency = call.seconds, 0.0
        if hold is None:
            hold, latency = transfer(call.operation, call.group_size, call.bytes, group.link)
            hold *= group.share
        stream = group.number, call.axis
        before = self._last.get(stream)
        begin = now if before is None else max(now, before.end)
        booking = self._last[stream] = self._ports.book(group.ports, begin, hold, latency)
        return booking

    def _group(self, among: Among, place: int) -> Group:
        places = members(among, place, self._step.replicas, self._step.plan.ranks)
        if places not in self._groups:
            self._groups[places] = self._made(places)
        return self._groups[places]

    def _made(self, places: tuple[int, ...]) -> Group:
        ports, devices = self._ports, [self._ports.device(one) for one in places]
        inside = all(ports.same_node(devices[0], device) for device in devices[1:])
        held = dict.fromkeys(port for one in places for port in ports.ports(one, inside))
        share = max(ports.share(one, inside) for one in places)
        return Group(len(self._groups), places, ports.slowest(devices), tuple(held), share)


def members(among: Among, place: int, replicas: int, pipeline_ranks: int) -> tuple[int, ...]:
    """The places that meet with one."""
    rank, replica = divmod(place, replicas)
    span = among.size * among.stride
    first = replica // span * span + replica % among.stride
    own = [first + among.stride * number for number in range(among.size)]
    ranks = range(pipeline_ranks) if among.whole_pipeline else (rank,)
    return tuple(one * replicas + other for one in ranks for other in own)
