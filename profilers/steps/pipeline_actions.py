"""Actions of a pipeline's schedule as a rank really executed them, by the marks that its phases take anyway."""

from __future__ import annotations

from typing import Any, NamedTuple

from profilers.records.schema import PHASES, ActionSample
from profilers.steps.timer import StepTimer, StepTimes


class ActionMarks(NamedTuple):
    """One action and its two marks."""

    work: str
    stage: int
    micro_batch: int
    begin: Any
    end: Any


class ActionRecorder:
    """Records the actions of one rank; nothing between ``stop`` and ``start``."""

    def __init__(self, timer: StepTimer) -> None:
        self._timer = timer
        self._done: list[ActionMarks] = []
        self.recording = False

    def start(self) -> None:
        """Record from now on."""
        self.recording = True

    def stop(self) -> None:
        """Actions seen so far stay."""
        self.recording = False

    def span(self, phase: str, work: str, stage: int, micro_batch: int) -> _Span:
        """``with recorder.span("forward", "F", 0, 3):`` - the phase of an action, without the wait before it."""
        return _Span(self._timer, PHASES.index(phase), (work, stage, micro_batch), self._done)

    def take(self) -> list[ActionMarks]:
        """The actions since the last take, oldest first."""
        marks = self._done.copy()
        self._done.clear()
        return marks

    def samples(self, actions: list[ActionMarks], times: StepTimes) -> list[ActionSample]:
        """The actions of one step as records; the device has passed its end."""
        clock, origin = self._timer.clock, times.changes[0][1]
        return [
            ActionSample(
                times.step,
                marks.work,
                marks.stage,
                marks.micro_batch,
                times.start_unix + clock.seconds(origin, marks.begin),
                clock.seconds(marks.begin, marks.end),
            )
            for marks in actions
        ]


class _Span:
    """A phase whose marks are kept."""

    __slots__ = ("_begin", "_code", "_done", "_timer", "_what")

    def __init__(
        self, timer: StepTimer, code: int, action: tuple[str, int, int], actions: list[ActionMarks]
    ) -> None:
        self._timer, self._code, self._what, self._done = timer, code, action, actions

    def __enter__(self) -> None:
        self._begin = self._timer.enter(self._code)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # a rank that fails stays where it failed, for the launcher to see
            self._done.append(ActionMarks(*self._what, self._begin, self._timer.leave()))
