"""Steps whose ranks share the cores of one machine: while some wait for the network, others compute faster.

Cores are shared evenly among all ranks that compute at a time, none of which has more than one: egalitarian processor
sharing (L. Kleinrock, 1967), which is what a fair scheduler comes to over more than a few time slices. Work then has
core seconds, not seconds: each rank's pace changes whenever another one begins or ends. Messages need a core, too,
evenly for as long as they are on their way, and are served first: it is the kernel that does most of that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from tuning.predict.simulation.event_loop import EventLoop
from tuning.predict.simulation.machine import Machine, PortUse
from tuning.predict.simulation.program import Inner, Op
from tuning.predict.simulation.step import Collective, Step
from tuning.predict.simulation.step_result import SimulatedStep

#: Core seconds that a message or collective costs one rank, besides what its place's work has.
Cost = Callable[[Collective], float]
_NEVER = float("inf")
#: Of the cores, the least that is left to computation.
_LEFT = 0.05


def simulate_shared(
    step: Step, machine: Machine, cores: float, cost: Cost = lambda call: 0.0, border_cost: float = 0.0
) -> SimulatedStep:
    """Play one step whose seconds of work are those of a core, on so many cores that all ranks share.

    ``border_cost`` is the core seconds of one message between stages, at either end.

    Raises:
        DeadlockError: no rank can go on; says who waits for what.
        ValueError: there are no cores, or ranks have no devices.
    """
    if cores <= 0:
        raise ValueError(f"cores: {cores:g} is not above 0")
    player = SharedPlayer(step, machine, Cores(cores, step.width), cost, border_cost)
    player.run()
    times = tuple(player.starts), tuple(player.ends), tuple(player.arrivals)
    return SimulatedStep(step, machine, player.program.ops, *times)


class Cores:
    """Who computes, and how much of it is left; every call tells the time, which never goes back.

    ``_done`` is what a rank has computed that was at it from the start. All have the same pace, so each ends when that
    has come to its own begin and its own work, and a change of pace moves no entry.
    """

    def __init__(self, count: float, width: int = 1) -> None:
        self._count, self._width = count, width
        self._done, self._now, self._taken = 0.0, 0.0, 0.0
        self._ends: list[tuple[float, int]] = []

    @property
    def pace(self) -> float:
        """Core seconds a second of each rank that computes."""
        left = max(self._count - self._taken, _LEFT * self._count)
        return min(1.0, left / max(1, self._width * len(self._ends)))

    @property
    def end(self) -> float:
        """When the first place is through, if nothing changes before."""
        return self._now + (self._ends[0][0] - self._done) / self.pace if self._ends else _NEVER

    def begin(self, place: int, seconds: float, now: float) -> None:
        """A place's ranks have so many core seconds each to compute."""
        self._compute(now)
        heappush(self._ends, (self._done + seconds, place))

    def finish(self, now: float) -> int:
        """The place that is through now, at ``end``."""
        self._done, place = heappop(self._ends)
        self._now = now
        return place

    def take(self, cores: float, now: float) -> None:
        """Messages need so many more cores from now on; less than 0 gives some back."""
        self._compute(now)
        self._taken += cores

    def _compute(self, now: float) -> None:
        self._done += self.pace * (now - self._now)
        self._now = now


class SharedPlayer(EventLoop):
    """Plays core seconds. What its base class calls the end of work is its begin: there all work takes no time."""

    def __init__(self, step: Step, machine: Machine, cores: Cores, cost: Cost, border_cost: float) -> None:
        super().__init__(step, machine)
        self._cores, self._cost, self._border_cost, self._width = cores, cost, border_cost, step.width
        self._slower = self._factors
        self._factors = [[0.0] * len(ops) for ops in self._ops]
        self._inside = [self._is_inside(place) for place in range(step.places)]
        self._parts: dict[int, deque[float | Inner]] = {}
        self._changes: list[tuple[float, float]] = []

    def run(self) -> None:
        """DeadlockError if not all come to their end."""
        while self._heap or self._cores.end < _NEVER:
            change = self._changes[0][0] if self._changes else _NEVER
            event = self._heap[0][0] if self._heap else _NEVER
            end = self._cores.end
            if change <= min(event, end):
                self._cores.take(heappop(self._changes)[1], change)
            elif end <= event:
                self._resume(self._cores.finish(end), end)
            else:
                self._at_event(*heappop(self._heap))
        self._check_end()
        self._note_ends()

    def _is_inside(self, place: int) -> bool:
        first, *others = self._ports.devices(place)
        return all(self._ports.same_node(first, other) for other in others)

    def _at_event(self, now: float, place: int) -> None:
        if self._works[place]:
            self._resume(place, now)
        else:
            self._go_on(place, now)

    def _resume(self, place: int, now: float) -> None:
        """The next part of a place's work: it computes, or waits for a collective among its own ranks."""
        at = self._at[place]
        parts = self._parts.setdefault(place, deque())
        if not parts:
            parts.extend(parts_of(self._ops[place][at]))
        part = parts.popleft()
        if isinstance(part, Inner):
            seconds = self._beside_others(place, part.seconds, now)
            self._load(self._cost(part.call) * self._width, now, now + seconds)
            heappush(self._heap, (now + seconds, place))
        elif part > 0:
            self._cores.begin(place, part * self._slower[place][at], now)
        else:
            self._end(place, now)

    def _beside_others(self, place: int, seconds: float, now: float) -> float:
        """Seconds of a collective among a place's ranks, which has half of a link that others' collectives are on."""
        bookings = {id(one): one for one in map(self._booking, self._ports.ports(place, self._inside[place]))}
        shared = min(seconds, max(one.busy_until for one in bookings.values()) - now)
        if shared > 0.0:
            for one in bookings.values():
                one.make_room(now, seconds)
            seconds += shared
        return seconds

    def _booking(self, port: int) -> PortUse:
        return self._ports.bookings[port]

    def _end(self, place: int, now: float) -> None:
        self._works[place] = False
        self._finish(place, now)
        self._go_on(place, now)

    def _send(self, place: int, op: Op, now: float) -> None:
        super()._send(place, op, now)
        arrival = self.arrivals[op.to * self._step.replicas + place % self._step.replicas][op.slot]
        self._load(2 * self._border_cost * self._width, now, arrival or now)

    def _call_collective(self, place: int, at: int, op: Op, now: float) -> None:
        known = len(self._met)
        super()._call_collective(place, at, op, now)
        for meeting in self._met[known:]:
            assert op.call is not None and meeting.booking is not None
            ranks = len(meeting.group.places) * self._width
            self._load(self._cost(op.call) * ranks, now, meeting.booking.end)

    def _load(self, seconds: float, begin: float, end: float) -> None:
        """Messages need so many core seconds, evenly over that time."""
        if seconds > 0 and end > begin:
            heappush(self._changes, (begin, seconds / (end - begin)))
            heappush(self._changes, (end, -seconds / (end - begin)))

    def _note_ends(self) -> None:
        for meeting in self._met:
            for place, op in meeting.arrivals:
                self.ends[place][op] = meeting.end or 0.0


def parts_of(op: Op) -> list[float | Inner]:
    """Seconds of a core and the collectives between them, in order; 0.0 is the end."""
    found, now = list[float | Inner](), 0.0
    for inner in op.inner:
        found += [inner.offset - now] if inner.offset > now else []
        found.append(inner)
        now = inner.offset + inner.seconds
    rest = op.seconds - now
    return [*found, *([rest] if rest > 1e-12 else []), 0.0]
