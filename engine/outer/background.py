"""Work of several calls, one after the other, that goes on beside steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.outer.link import Call
from profilers.steps.timer import StepTimer

#: Yields each call that it has started, and goes on once that is through.
Work = Iterator[Call]
#: Begin and end of each wait, as marks of the device's clock: on a GPU the host goes on while the device waits.
Waits = list[tuple[Any, Any]]


class Background:
    """At most one work at a time, driven by the main thread: calls on the group keep one order on all ranks."""

    def __init__(self, timer: StepTimer) -> None:
        self._timer = timer
        self._work: Work | None = None
        self._call: Call | None = None

    def begin(self, work: Work) -> None:
        """Start its first call."""
        assert self._work is None, "the work before is still under way"
        self._work = work
        self._call = next(work, None)

    def progress(self) -> None:
        """Go on as far as that takes no waiting."""
        while self._call is not None and self._call.is_through:
            self._call.wait()
            self._go_on()

    def finish(self) -> Waits:
        """Go on to the end; returns the waits for calls, which count as exposed communication."""
        waits, mark = Waits(), self._timer.clock.mark
        while self._call is not None:
            began = mark()
            with self._timer.phase("communication_exposed"):
                self._call.wait()
            waits.append((began, mark()))
            self._go_on()
        self._work = None
        return waits

    def _go_on(self) -> None:
        assert self._work is not None
        self._call = next(self._work, None)
