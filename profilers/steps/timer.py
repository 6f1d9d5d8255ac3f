"""Phases of a step as disjoint spans of the main thread; a nested phase suspends the one around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from profilers.records.schema import PHASES
from profilers.steps.clock import Clock
from profilers.steps.rank_status import RankStatus, unread_status
from profilers.steps.resolve import Phase, StepSeconds

_CODE = {name: code for code, name in enumerate(PHASES)}
_OTHER = _CODE["other"]


class IssuedCall(NamedTuple):
    """A call that is waited for later: ``end`` holds the mark once it is known, it may end on another thread."""

    begin: Any
    end: list[Any]
    kind: Any


@dataclass(slots=True)
class StepTimes:
    """Marks of one step.

    ``changes`` tells which phase ran from which mark on, and how many waits there were before. ``waits`` are (begin,
    end, kind): short spans of exposed communication inside a phase, which did not change for them; a wait that is no
    call has None as kind. ``issued`` are the calls that nobody waited for at once. ``end`` is the last mark. A step
    that is not ``detailed`` has its first change alone.
    """

    step: int
    start_unix: float
    start_counter: float
    cpu_start_seconds: float
    changes: list[tuple[int, Any, int]] = field(default_factory=list)
    waits: list[tuple[Any, Any, Any]] = field(default_factory=list)
    issued: list[IssuedCall] = field(default_factory=list)
    end: Any = None
    cpu_seconds: float = 0.0
    detailed: bool = True
    #: The end of the step before, and (begin, end) of what was done since then that is no part of training.
    end_before: Any = None
    asides: list[tuple[Any, Any]] = field(default_factory=list)

    def gap_seconds(self, clock: Clock) -> float | None:
        """Seconds since the end of the step before, without what is no part of training; None of a first step."""
        if self.end_before is None:
            return None
        aside = sum(clock.seconds(begin, end) for begin, end in self.asides)
        return max(0.0, clock.seconds(self.end_before, self.changes[0][1]) - aside)

    def resolve(self, clock: Clock) -> StepSeconds:
        """In seconds, once the device has passed the end."""
        origin = self.changes[0][1]
        points = [clock.seconds(origin, mark) for _, mark, _ in self.changes]
        points.append(clock.seconds(origin, self.end))
        places = [place for *_, place in self.changes] + [len(self.waits)]
        return StepSeconds(
            step=self.step,
            start_unix=self.start_unix,
            phases=[
                Phase(code, points[i], points[i + 1], places[i], places[i + 1])
                for i, (code, *_) in enumerate(self.changes)
            ],
            waits=clock.spans_from_marks(origin, self.waits),
            issued=clock.spans_from_marks(
                origin, [(begin, end[0] if end else None, kind) for begin, end, kind in self.issued]
            ),
        )


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

    Every change is told to ``status``: the launcher sees through it where a hung rank stands.
    """

    def __init__(self, clock: Clock, status: RankStatus | None = None) -> None:
        self.clock = clock
        self._mark = clock.mark
        status = status or unread_status()
        self._tell, self._end_state = status.teller(), status.end_state
        self._stack: list[int] = [_OTHER]
        self._waits: list[tuple[Any, Any, Any]] = []
        self._issued: list[IssuedCall] = []
        self._times: StepTimes | None = None
        self._end_before: Any = None
        self._asides: list[tuple[Any, Any]] = []
        self._phases = {name: _Phase(self, code) for name, code in _CODE.items()}
        self.step = -1
        #: Whether steps that begin are timed phase by phase; the others only as a whole.
        self.detailed = True
        #: Told the phase code whenever a phase of a step begins or goes on; short waits are not told.
        self.on_change: Callable[[int], None] | None = None
        #: Takes (begin, end, kind) of a wait: a tensor-parallel step has hundreds, so they are told with one call.
        self.note: Callable[[tuple[Any, Any, Any]], None] = self._waits.append
        #: Takes a call that is waited for later.
        self.issue: Callable[[IssuedCall], None] = self._issued.append

    @property
    def noted_count(self) -> int | None:
        """How much of the running step was noted so far, as another thread may ask; None between steps."""
        times = self._times
        return None if times is None else len(times.changes) + len(self._waits) + len(self._issued)

    def phase(self, name: str) -> _Phase:
        """``with timer.phase("forward"):`` - outside a step it only reports where the rank stands."""
        return self._phases[name]

    @contextmanager
    def aside(self) -> Iterator[None]:
        """``with timer.aside():`` around evaluation, checkpoints and orders between two steps."""
        begin = self._mark()
        try:
            yield
        finally:
            self._asides.append((begin, self._mark()))

    def begin(self, step: int) -> None:
        """Start a step in phase ``other``."""
        self.step = step
        self._stack[:] = [_OTHER]
        self.take()
        self._times = StepTimes(
            step,
            time.time(),
            time.perf_counter(),
            time.process_time(),
            detailed=self.detailed,
            end_before=self._end_before,
            asides=self._asides,
        )
        self._asides = []
        self._end_state()
        self._change(_OTHER)

    def enter(self, code: int) -> Any:
        """Suspend the running phase for another one; returns the mark at which it begins."""
        self._stack.append(code)
        return self._change(code)

    def leave(self) -> Any:
        """Resume the phase that was suspended last; returns the mark at which it goes on."""
        self._stack.pop()
        return self._change(self._stack[-1])

    def take(self) -> tuple[list[tuple[Any, Any, Any]], list[IssuedCall]]:
        """Waits and issued calls since the last take or the last step, oldest first."""
        recorded = self._waits.copy(), self._issued.copy()
        self._waits.clear()
        self._issued.clear()
        return recorded

    @property
    def running(self) -> bool:
        """Whether a step has begun and not ended."""
        return self._times is not None

    def end(self) -> StepTimes:
        """Close the step."""
        times = self._times
        assert times is not None, "end() without begin()"
        times.end = self._end_before = self.clock.mark()
        times.cpu_seconds = time.process_time() - times.cpu_start_seconds
        times.waits, times.issued = self.take()
        self._times = None
        return times

    def _change(self, code: int, at: Any = None) -> Any:
        times, mark = self._times, None
        if times is None or times.detailed or not times.changes:
            mark = self._mark() if at is None else at
            if times is not None:
                times.changes.append((code, mark, len(self._waits)))
                if self.on_change is not None:
                    self.on_change(code)
        self._tell(self.step, code, time.monotonic())
        return mark
