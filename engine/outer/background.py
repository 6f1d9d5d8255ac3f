"""Work of several calls, one after the other, that goes on beside steps."""

from __future__ import annotations

import time
from collections.abc import Iterator

from engine.outer.link import Call
from profilers.step_timer import StepTimer

#: Yields each call that it has started, and goes on once that is through.
Work = Iterator[Call]


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

    def finish(self) -> float:
        """Go on to the end; returns the seconds that were waited for calls, which count as exposed communication."""
        waited = 0.0
        while self._call is not None:
            began = time.perf_counter()
            with self._timer.phase("communication_exposed"):
                self._call.wait()
            waited += time.perf_counter() - began
            self._go_on()
        self._work = None
        return waited

    def _go_on(self) -> None:
        assert self._work is not None
        self._call = next(self._work, None)
