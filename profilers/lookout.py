"""Looks now and then where the training thread stands, so that waits need not be told one by one.

A wait for a collective lasts microseconds, and there are hundreds in a step: to tell each would cost more than to
record it. A second thread instead looks at the training thread's frame.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import CodeType
from typing import Any, Self, TypeVar

from profilers.standing import Standing
from profilers.step_timer import StepTimer

#: How often it looks. A wait is told when two looks in a row find it.
PERIOD_SECONDS = 0.5

F = TypeVar("F", bound=Callable[..., Any])

_waits: set[CodeType] = set()


def waits_here(function: F) -> F:
    """Marks a function whose own body stands waiting for other ranks and does nothing else that takes long."""
    _waits.add(function.__code__)
    return function


class Lookout:
    """Tells ``standing`` about the thread that made this object, while it is entered."""

    def __init__(self, timer: StepTimer, standing: Standing) -> None:
        self._timer, self._standing = timer, standing
        self._thread_id = threading.get_ident()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)
        self._seen: tuple[int, int | None, bool] | None = None
        self._seen_at, self._told = 0.0, False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def look(self) -> None:
        """One look."""
        noted = self._timer.noted
        if noted is None:
            self._seen = None
            return
        seen = self._timer.step, noted, self._is_waiting()
        if seen != self._seen:
            self._seen, self._seen_at, self._told = seen, time.monotonic(), False
            self._standing.tell_moving(self._seen_at)
        elif seen[-1] and not self._told:
            self._told = True
            self._standing.tell_waiting(self._seen_at)

    def _is_waiting(self) -> bool:
        frame = sys._current_frames().get(self._thread_id)
        return frame is not None and frame.f_code in _waits

    def _run(self) -> None:
        while not self._done.wait(PERIOD_SECONDS):
            self.look()
