"""Phases of a step as disjoint spans of the main thread; a nested phase suspends the one around it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from profilers.clock import Clock
from profilers.records import PHASES

_CODE = {name: code for code, name in enumerate(PHASES)}
_OTHER = _CODE["other"]
EXPOSED = _CODE["communication_exposed"]


@dataclass(slots=True)
class StepTimes:
    """Marks of one step: ``changes`` says from which mark on which phase ran, the last one ends the step."""

    step: int
    start_unix: float
    start_counter: float
    cpu_start_seconds: float
    changes: list[tuple[int, Any]] = field(default_factory=list)
    end: Any = None
    cpu_seconds: float = 0.0

    def phase_seconds(self, clock: Clock) -> dict[str, float]:
        """Seconds in each phase; they sum to the step's length exactly."""
        totals = [0.0] * len(PHASES)
        marks = [mark for _, mark in self.changes[1:]] + [self.end]
        for (code, begin), end in zip(self.changes, marks, strict=True):
            totals[code] += clock.seconds(begin, end)
        return dict(zip(PHASES, totals, strict=True))

    def spans(self, clock: Clock, code: int) -> list[tuple[float, float]]:
        """Spans of one phase in seconds since the step's start."""
        origin = self.changes[0][1]
        points = [clock.seconds(origin, mark) for _, mark in self.changes] + [clock.seconds(origin, self.end)]
        return [(points[i], points[i + 1]) for i, (phase, _) in enumerate(self.changes) if phase == code]


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

    ``on_phase`` is told every change (step, phase code): the launcher sees through it where a hung rank stands.
    """

    def __init__(self, clock: Clock, on_phase: Callable[[int, int], None] | None = None) -> None:
        self.clock = clock
        self._mark = clock.mark
        self._on_phase = on_phase or (lambda step, code: None)
        self._stack: list[int] = [_OTHER]
        self._times: StepTimes | None = None
        self._phases = {name: _Phase(self, code) for name, code in _CODE.items()}
        self.step = -1
        #: Told the phase code whenever a phase of a step begins or goes on; short spans (``pause``) are not told.
        self.on_change: Callable[[int], None] | None = None

    def phase(self, name: str) -> _Phase:
        """``with timer.phase("forward"):`` - outside a step it only reports where the rank stands."""
        return self._phases[name]

    def begin(self, step: int) -> None:
        """Start a step in phase ``other``."""
        self.step = step
        self._stack = [_OTHER]
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

    def pause(self, code: int) -> Any:
        """The start of a short span of another phase, told by its end; returns the mark."""
        self._on_phase(self.step, code)
        return self._mark()

    def resume(self, code: int, begin: Any) -> Any:
        """The end of a span that began with ``pause``; returns the mark."""
        mark, running = self._mark(), self._stack[-1]
        if self._times is not None:
            self._times.changes += ((code, begin), (running, mark))
        self._on_phase(self.step, running)
        return mark

    def end(self) -> StepTimes:
        """Close the step."""
        times = self._times
        assert times is not None, "end() without begin()"
        times.end = self.clock.mark()
        times.cpu_seconds = time.process_time() - times.cpu_start_seconds
        self._times = None
        return times

    def _change(self, code: int) -> Any:
        mark = self._mark()
        if self._times is not None:
            self._times.changes.append((code, mark))
            if self.on_change is not None:
                self.on_change(code)
        self._on_phase(self.step, code)
        return mark
