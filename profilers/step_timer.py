"""Phases of a step as disjoint spans of the main thread; a nested phase suspends the one around it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from profilers.clock import Clock
from profilers.records import PHASES
from profilers.standing import EXPOSED, Standing, untold

_CODE = {name: code for code, name in enumerate(PHASES)}
_OTHER = _CODE["other"]
#: Length of a phase change in the log.
_CHANGE = 2


class Noted(NamedTuple):
    """A call or a wait: ``kind`` is None for a wait that is no call, ``end`` a list for a call nobody waited for.

    The list holds the mark once it is known: such a call may end on another thread.
    """

    begin: Any
    end: Any
    kind: Any


@dataclass(slots=True)
class StepTimes:
    """Marks of one step: ``changes`` says from which mark on which phase ran, the last one ends the step.

    ``waits`` are short spans of exposed communication inside a phase, which did not change for them: its code, and
    the two marks. ``calls`` are the calls that the step issued, in the order in which they were noted.
    """

    step: int
    start_unix: float
    start_counter: float
    cpu_start_seconds: float
    changes: list[tuple[int, Any]] = field(default_factory=list)
    waits: list[tuple[int, Any, Any]] = field(default_factory=list)
    calls: list[Noted] = field(default_factory=list)
    end: Any = None
    cpu_seconds: float = 0.0

    def sort(self, log: list[Any]) -> None:
        """Take over what the timer logged: phase changes (code, mark) and ``Noted``, which may be plain tuples."""
        running = _OTHER
        for entry in log:
            if len(entry) == _CHANGE:
                running = entry[0]
                self.changes.append(entry)
                continue
            begin, end, kind = entry
            if kind is not None:
                self.calls.append(entry)
            if type(end) is not list:
                self.waits.append((running, begin, end))

    def phase_seconds(self, clock: Clock) -> dict[str, float]:
        """Seconds in each phase; they sum to the step's length exactly."""
        totals = [0.0] * len(PHASES)
        marks = [mark for _, mark in self.changes[1:]] + [self.end]
        for (code, begin), end in zip(self.changes, marks, strict=True):
            totals[code] += clock.seconds(begin, end)
        for code, begin, end in self.waits:
            seconds = clock.seconds(begin, end)
            totals[code] -= seconds
            totals[EXPOSED] += seconds
        return dict(zip(PHASES, totals, strict=True))

    def spans(self, clock: Clock) -> list[tuple[int, float, float]]:
        """Phases in order (code, begin, end), in seconds since the step's start; short waits do not cut them."""
        origin = self.changes[0][1]
        points = [clock.seconds(origin, mark) for _, mark in self.changes] + [clock.seconds(origin, self.end)]
        return [(code, points[i], points[i + 1]) for i, (code, _) in enumerate(self.changes)]

    def short_waits(self, clock: Clock) -> list[tuple[int, float, float]]:
        """The short waits in order: the phase around it, begin and end in seconds since the step's start."""
        origin = self.changes[0][1]
        return [
            (code, clock.seconds(origin, begin), clock.seconds(origin, end))
            for code, begin, end in self.waits
        ]

    def exposed(self, clock: Clock) -> list[tuple[float, float]]:
        """Spans of exposed communication in order, in seconds since the step's start; none overlap."""
        phases = [span[1:] for span in self.spans(clock) if span[0] == EXPOSED]
        return sorted(phases + [wait[1:] for wait in self.short_waits(clock) if wait[0] != EXPOSED])


class _Phase:
    """A reusable ``with`` block for one phase; cheaper than a generator-based one."""

    __slots__ = ("code", "timer")

    def __init__(self, timer: StepTimer, code: int) -> None:
        self.timer, self.code = timer, code

    def __enter__(self) -> None:
        self.timer.enter(self.code)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # a rank that fails stays where it failed, for the launcher to see
            self.timer.leave()


class StepTimer:
    """Times the phases of one rank's steps.

    Every change is told to ``standing``: the launcher sees through it where a hung rank stands.
    """

    def __init__(self, clock: Clock, standing: Standing | None = None) -> None:
        self.clock = clock
        self._mark = clock.mark
        self._standing = standing or untold()
        self._stack: list[int] = [_OTHER]
        self._log: list[Any] = []
        self._times: StepTimes | None = None
        self._phases = {name: _Phase(self, code) for name, code in _CODE.items()}
        self.step = -1
        #: Told the phase code whenever a phase of a step begins or goes on; short waits are not told.
        self.on_change: Callable[[int], None] | None = None
        #: Takes a ``Noted``: a tensor-parallel step has some hundred, so they are told with one call.
        self.note: Callable[[tuple[Any, Any, Any]], None] = self._log.append

    @property
    def noted(self) -> int | None:
        """How much of the running step was noted so far, as another thread may ask; None between steps."""
        return None if self._times is None else len(self._log)

    def phase(self, name: str) -> _Phase:
        """``with timer.phase("forward"):`` - outside a step it only reports where the rank stands."""
        return self._phases[name]

    def begin(self, step: int) -> None:
        """Start a step in phase ``other``."""
        self.step = step
        self._stack[:] = [_OTHER]
        self._log.clear()
        self._times = StepTimes(step, time.time(), time.perf_counter(), time.process_time())
        self._change(_OTHER)

    def enter(self, code: int) -> Any:
        """Suspend the running phase for another one; returns the mark at which it begins."""
        self._stack.append(code)
        return self._change(code)

    def leave(self) -> Any:
        """Resume the phase that was suspended last; returns the mark at which it goes on."""
        self._stack.pop()
        return self._change(self._stack[-1])

    def take(self) -> list[Noted]:
        """Calls and waits noted outside a step since the last one or the last take, oldest first."""
        noted = [Noted(*entry) for entry in self._log if len(entry) != _CHANGE]
        self._log.clear()
        return noted

    def end(self) -> StepTimes:
        """Close the step."""
        times = self._times
        assert times is not None, "end() without begin()"
        times.end = self.clock.mark()
        times.cpu_seconds = time.process_time() - times.cpu_start_seconds
        times.sort(self._log)
        self._log.clear()
        self._times = None
        return times

    def _change(self, code: int) -> Any:
        mark = self._mark()
        if self._times is not None:
            self._log.append((code, mark))
            if self.on_change is not None:
                self.on_change(code)
        self._standing.tell(self.step, code)
        return mark
