"""The event loop: plays a program on all places at once.

An event is a place whose work ends, or that goes on after a wait. They are taken in the order of time, so ports see
transfers in that order. Work is one event; a message needs none, since its arrival is known when it is sent. A
collective begins when all its places have come, in the order in which their group calls them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from tuning.predict.model.hardware import Link
from tuning.predict.simulation.machine import Machine, Ports, PortUse, transfer
from tuning.predict.simulation.program import Code, Op, Program
from tuning.predict.simulation.shared_ports import ports_of
from tuning.predict.simulation.step import Collective, CollectiveGroup, Step
from tuning.predict.simulation.step_result import SimulatedStep


class Group(NamedTuple):
    """Places that meet, the link of their ring, their ports, and how much of a port's time a byte takes."""

    number: int
    places: tuple[int, ...]
    link: Link
    ports: tuple[int, ...]
    share: float


@dataclass(slots=True)
class CollectiveCall:
    """One collective: who has come and from which operation; what it has of its ports, once all have."""

    axis: str
    group: Group
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    booking: PortUse | None = None
    waiting: list[int] = field(default_factory=list)

    @property
    def end(self) -> float | None:
        """When it ends, as far as is known now; None while somebody is missing."""
        return None if self.booking is None else self.booking.end


class Meetings:
    """All groups of a step and what they are at."""

    def __init__(self, step: Step, ports: Ports) -> None:
        self._step, self._ports = step, ports
        self._counts: dict[tuple[int, str, CollectiveGroup], int] = {}
        self._open: dict[tuple[int, str, int], CollectiveCall] = {}
        self._last: dict[tuple[int, str], PortUse] = {}
        self._groups: dict[tuple[tuple[int, ...], int], Group] = {}
        self.group = lru_cache(maxsize=None)(self._group)

    def come(self, call: Collective, place: int, op: int, now: float) -> CollectiveCall:
        """A place reaches a collective; the last one lets it begin."""
        counted = (place, call.axis, call.group)
        number = self._counts[counted] = self._counts.get(counted, 0) + 1
        group = self.group(call.group, place, call.group_size)
        key = group.number, call.axis, number
        meeting = self._open.get(key)
        if meeting is None:
            meeting = self._open[key] = CollectiveCall(call.axis, group)
        meeting.arrivals.append((place, op))
        if len(meeting.arrivals) == len(group.places):
            del self._open[key]
            meeting.booking = self._begin(call, group, now)
        return meeting

    def _begin(self, call: Collective, group: Group, now: float) -> PortUse:
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

    def _group(self, among: CollectiveGroup, place: int, ranks: int) -> Group:
        places = members(among, place, self._step.replicas, self._step.plan.ranks)
        key = places, max(1, min(ranks // len(places), self._step.width))
        if key not in self._groups:
            self._groups[key] = Group(len(self._groups), places, *self._ports.meeting(*key))
        return self._groups[key]


def members(among: CollectiveGroup, place: int, replicas: int, pipeline_ranks: int) -> tuple[int, ...]:
    """The places that meet with one."""
    rank, replica = divmod(place, replicas)
    span = among.size * among.stride
    first = replica // span * span + replica % among.stride
    own_members = [first + among.stride * number for number in range(among.size)]
    ranks = range(pipeline_ranks) if among.whole_pipeline else (rank,)
    return tuple(rank * replicas + other for rank in ranks for other in own_members)


_NOBODY, _MESSAGE, _REGISTER, _MEETING = 0, 1, 2, 3


class DeadlockError(ValueError):
    """Every rank that is left waits for another one."""


def simulate(step: Step, machine: Machine) -> SimulatedStep:
    """One step, from its begin until every place is through; the cost grows with places x actions.

    Raises:
        DeadlockError: no rank can go on; says who waits for what.
        ValueError: a rank has no device, or a plan that no rank could follow.
    """
    loop = EventLoop(step, machine)
    loop.run()
    times = tuple(loop.starts), tuple(loop.ends), tuple(loop.arrivals)
    return SimulatedStep(step, machine, loop.program.ops, *times)


class EventLoop:
    """One step; ``starts`` and ``ends`` have one list a place, with one number an operation."""

    def __init__(self, step: Step, machine: Machine) -> None:
        self._step = step
        self._ports = ports_of(machine, step.places, step.width, step.replicas)
        self.program = Program.from_step(step, self._ports)
        self._meetings, replicas = Meetings(step, self._ports), step.replicas
        self._ops = [self.program.ops[place // replicas] for place in range(step.places)]
        self.starts = [[0.0] * len(ops) for ops in self._ops]
        self.ends = [[0.0] * len(ops) for ops in self._ops]
        #: When a message is there, by the operation that needs it.
        self.arrivals: list[list[float | None]] = [[None] * len(ops) for ops in self._ops]
        self._factors = _factors(step, machine, self._ops)
        self._at, self._works = [0] * step.places, [False] * step.places
        self._waits = [_NOBODY] * step.places
        self._free: dict[tuple[int, int], deque[float]] = {}
        self._wanting: dict[tuple[int, int], int] = {}
        self._started: dict[tuple[int, str], list[CollectiveCall]] = {}
        self._joining: dict[int, float] = {}
        self._met: list[CollectiveCall] = []
        self._heap = [(0.0, place) for place in range(step.places)]

    def run(self) -> None:
        """DeadlockError if not all come to their end."""
        heap, works = self._heap, self._works
        while heap:
            now, place = heappop(heap)
            if works[place]:
                works[place] = False
                self._finish(place, now)
            self._go_on(place, now)
        self._check_end()
        for meeting in self._met:
            for place, op in meeting.arrivals:
                self.ends[place][op] = meeting.end or 0.0

    def _go_on(self, place: int, now: float) -> None:
        """Do what takes no time, up to the next operation that does."""
        ops, waits = self._ops[place], self._waits
        waits[place] = _NOBODY
        while (index := self._at[place]) < len(ops):
            op = ops[index]
            if op.code == Code.WORK:
                self._begin(place, index, op, now)
                return
            if op.code == Code.START:
                self._call_collective(place, index, op, now)
            elif not self._joins(place, index, op, now):
                return
            self._at[place] = index + 1

    def _begin(self, place: int, index: int, op: Op, now: float) -> None:
        """Begin work, unless its message was not sent yet, or there is no register for its result."""
        if op.needs:
            arrival = self.arrivals[place][index]
            if arrival is None:
                self._waits[place] = _MESSAGE
                return
            now = max(arrival, now)
        if op.takes >= 0:
            credit = self._take(place, op.takes)
            if credit is None:
                self._waits[place] = _REGISTER
                return
            now = max(now, credit)
        self.starts[place][index] = now
        self._works[place] = True
        heappush(self._heap, (now + op.seconds * self._factors[place][index], place))

    def _finish(self, place: int, now: float) -> None:
        """Work has ended: send what it made, give back the register that it read."""
        index = self._at[place]
        op = self._ops[place][index]
        self.ends[place][index] = now
        self._at[place] = index + 1
        if op.to >= 0:
            self._send(place, op, now)
        if op.gives >= 0:
            self._give(place, op, now)

    def _send(self, place: int, op: Op, now: float) -> None:
        replicas = self._step.replicas
        target = op.to * replicas + place % replicas
        self.arrivals[target][op.slot] = self._ports.send(place, target, op.bytes, now)
        if self._waits[target] == _MESSAGE and self._at[target] == op.slot:
            self._go_on(target, now)

    def _take(self, place: int, register: int) -> float | None:
        """When a register is free; None where somebody has to give one back first."""
        key = register, place % self._step.replicas
        free = self._free.get(key)
        if free is None:
            free = self._free[key] = deque([0.0] * (self._step.registers or 0))
        if free:
            return free.popleft()
        self._wanting[key] = place
        return None

    def _give(self, place: int, op: Op, now: float) -> None:
        """A credit goes back to who wrote the register; it has no bytes."""
        replicas = self._step.replicas
        source = op.giver * replicas + place % replicas
        key = op.gives, place % replicas
        self._free[key].append(now + self._ports.route(place, source).alpha)
        if self._wanting.pop(key, None) == source and self._waits[source] == _REGISTER:
            self._go_on(source, now)

    def _call_collective(self, place: int, index: int, op: Op, now: float) -> None:
        """Call a collective; where all have called it, those that wait are told its end."""
        assert op.call is not None
        meeting = self._meetings.come(op.call, place, index, now)
        self.starts[place][index] = now
        self._started.setdefault((place, op.tag), []).append(meeting)
        if meeting.end is not None:
            self._met.append(meeting)
            for other in meeting.waiting:
                heappush(self._heap, (meeting.end, other))

    def _joins(self, place: int, index: int, op: Op, now: float) -> bool:
        """Whether all that a place has called with a tag is through; else it comes again when that may be so."""
        if place not in self._joining:
            self._joining[place] = now
            if op.code == Code.MEET:
                self._call_collective(place, index, op, now)
        called = self._started.get((place, op.tag), [])
        for meeting in called:
            if meeting.end is None:
                meeting.waiting.append(place)
                self._waits[place] = _MEETING
                return False
        end = max((meeting.end or 0.0 for meeting in called), default=now)
        if end > now:
            heappush(self._heap, (end, place))
            return False
        self._started.pop((place, op.tag), None)
        self.starts[place][index], self.ends[place][index] = self._joining.pop(place), now
        return True

    def _check_end(self) -> None:
        unfinished = [place for place, index in enumerate(self._at) if index < len(self._ops[place])]
        if unfinished:
            waits = "; ".join(self._describe_wait(place) for place in unfinished[:4])
            more_text = f"; and {len(unfinished) - 4:,} more places" if len(unfinished) > 4 else ""
            raise DeadlockError(f"deadlock in the {self._step.plan.kind} plan: {waits}{more_text}")

    def _describe_wait(self, place: int) -> str:
        rank, replica = divmod(place, self._step.replicas)
        op = self._ops[place][self._at[place]]
        target = str(self._step.plan.actions[rank][op.action]) if op.action >= 0 else "the end of the step"
        rank_words = f"pipeline rank {rank}" + (f" of replica {replica}" if self._step.replicas > 1 else "")
        why = {
            _MESSAGE: f"waits at {target} for its message",
            _REGISTER: f"waits at {target} for one of {self._step.registers} registers that nobody gives back",
            _MEETING: f"waits for others in a collective of {op.call.axis if op.call else op.tag}",
        }
        return f"{rank_words} {why.get(self._waits[place], f'stands at {target}')}"


def _factors(step: Step, machine: Machine, ops: list[tuple[Op, ...]]) -> list[list[float]]:
    """On each operation's seconds: a straggler's, times a random one."""
    random = np.random.default_rng(machine.seed)
    factors, even = [], {len(ops_of_place): [1.0] * len(ops_of_place) for ops_of_place in ops}
    for place, ops_of_place in enumerate(ops):
        ranks = range(place * step.width, (place + 1) * step.width)
        slower = max((machine.slower.get(rank, 1.0) for rank in ranks), default=1.0)
        if not machine.jitter:
            factors.append(even[len(ops_of_place)] if slower == 1.0 else [slower] * len(ops_of_place))
            continue
        mean, sigma = -(machine.jitter**2) / 2, machine.jitter
        factors.append((slower * random.lognormal(mean, sigma, len(ops_of_place))).tolist())
    return factors
