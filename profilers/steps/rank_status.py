"""Where a rank stands, in a few words that another process may read at any time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from time import monotonic
from typing import NamedTuple

from profilers.records.schema import PHASES

_tell = Struct("=qqd").pack_into
EXPOSED = PHASES.index("communication_exposed")


class Standing(NamedTuple):
    """What another process reads of a rank: its step, the code of its phase and since when it has not moved. ``state``
    is the code of what it does outside a step (0: nothing), whatever the phases of that are, from ``state_since`` on.
    Times are of the monotonic clock.
    """

    step: int
    code: int
    since: float
    state: int
    state_since: float


class RankStatus(NamedTuple):
    """The words of one rank from ``offset`` on: its step, its phase code, since when, waiting since, seen moving at;
    the code of what it does outside a step, and since when.

    ``times`` and ``words`` lie over the same memory, as seconds of the monotonic clock and as integers. The training
    thread writes all but the fourth and fifth, which a ``Lookout`` writes.
    """

    words: memoryview[int]
    times: memoryview[float]
    offset: int

    def tell(self, step: int, code: int) -> None:
        """The rank is now in this phase of this step."""
        self.teller()(step, code, monotonic())

    def teller(self) -> Callable[[int, int, float], None]:
        """``tell`` for those who call it often: a step, the code of its phase, and the monotonic clock."""
        return partial(_tell, self.words, self.offset * 8)

    def begin_state(self, step: int, code: int) -> None:
        """Outside a step the rank is now about to do this; it lasts, through phases of its own, until the next one or
        the next step.
        """
        self.words[self.offset + 5] = 0  # nobody reads the new state with the time of the one before
        self.times[self.offset + 6] = monotonic()
        self.words[self.offset + 5] = code
        self.tell(step, code)

    def end_state(self) -> None:
        """A step begins."""
        self.words[self.offset + 5] = 0

    def tell_waiting(self, since: float) -> None:
        """It waits for others inside this phase, as of this time of the monotonic clock."""
        self.times[self.offset + 3] = since

    def tell_moving(self, seconds: float) -> None:
        """It was seen to get on within this phase."""
        self.times[self.offset + 4] = seconds

    def read(self) -> Standing:
        """Where it stands; a wait inside a phase is told as exposed communication."""
        step, code = self.words[self.offset], self.words[self.offset + 1]
        since, waiting, moving = self.times[self.offset + 2 : self.offset + 5]
        if waiting >= max(since, moving) > 0:
            code, stood_since = EXPOSED, waiting
        else:
            stood_since = max(since, moving)
        return Standing(step, code, stood_since, self.words[self.offset + 5], self.times[self.offset + 6])


def unread_status() -> RankStatus:
    """One that nobody reads."""
    memory = memoryview(bytearray(7 * 8))
    return RankStatus(memory.cast("q"), memory.cast("d"), 0)
