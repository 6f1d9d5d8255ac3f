"""How often a part of the sampling may be read: each tick, or less where reading it would cost too much."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

#: The most that one part may cost, as a share of one processor core.
BUDGET = 0.004
#: Its cost is the least of so many last readings: one that was held up, or the first, says nothing.
_REMEMBERED = 3


class IntervalTimer:
    """Tells when some seconds are over; a wall clock that is set back starts them anew."""

    def __init__(self, seconds: float) -> None:
        # A tick that comes a little early is not the one before.
        self._seconds = seconds * 0.9
        self._last: float | None = None

    def due(self, now: float) -> bool:
        """At once, and then again after the seconds; ``now`` is any clock's."""
        if self._last is not None and 0 <= now - self._last < self._seconds:
            return False
        self._last = now
        return True


class Pace:
    """Skips ticks so that a part's processor time stays below ``budget`` of one core.

    On a host with few cores every tick is read. /proc/stat of 256 cores costs about a millisecond, so at a tick of
    0.1 s only every third one is. ``clock`` tells the thread's processor seconds.
    """

    def __init__(
        self,
        interval_seconds: float,
        budget: float = BUDGET,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._allowed_seconds = budget * interval_seconds
        self._clock = clock
        self._costs: deque[float] = deque(maxlen=_REMEMBERED)
        self._wait_ticks = 0
        #: Times that the part was read, and processor seconds that took.
        self.readings = 0
        self.cpu_seconds = 0.0

    def due(self) -> bool:
        """Called each tick: whether to read now."""
        if self._wait_ticks > 0:
            self._wait_ticks -= 1
            return False
        return True

    def read(self, reading: Callable[[], None]) -> None:
        """Do the reading, and note what it cost."""
        began = self._clock()
        reading()
        cost = self._clock() - began
        self.readings += 1
        self.cpu_seconds += cost
        self._costs.append(cost)
        if len(self._costs) == _REMEMBERED:
            self._wait_ticks = max(0, math.ceil(min(self._costs) / self._allowed_seconds) - 1)
