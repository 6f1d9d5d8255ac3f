"""Where a rank stands, in three words that another process may read at any time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from time import monotonic
from typing import NamedTuple

from profilers.records.schema import PHASES

_tell = Struct("=qqd").pack_into
EXPOSED = PHASES.index("communication_exposed")


class RankStatus(NamedTuple):
    """The words of one rank from ``offset`` on: its step, its phase code, since when, waiting since, seen moving at.

    ``times`` and ``words`` lie over the same memory, as seconds of the monotonic clock and as integers. The training
    thread writes the first three, a ``Lookout`` the others.
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

    def tell_waiting(self, since: float) -> None:
        """It waits for others inside this phase, as of this time of the monotonic clock."""
        self.times[self.offset + 3] = since

    def tell_moving(self, seconds: float) -> None:
        """It was seen to get on within this phase."""
        self.times[self.offset + 4] = seconds

    def read(self) -> tuple[int, int, float]:
        """Step, code of the phase and since when; a wait inside a phase is told as exposed communication."""
        step, code = self.words[self.offset], self.words[self.offset + 1]
        since, waiting, moving = self.times[self.offset + 2 : self.offset + 5]
        if waiting >= max(since, moving) > 0:
            return step, EXPOSED, waiting
        return step, code, max(since, moving)


def unread_status() -> RankStatus:
    """One that nobody reads."""
    memory = memoryview(bytearray(5 * 8))
    return RankStatus(memory.cast("q"), memory.cast("d"), 0)
