"""Commands to a running job, applied by all ranks at the same step without an additional collective."""

from __future__ import annotations

from engine.config import RunConfig
from engine.progress import Progress

#: Ranks are less than one step apart where each step ends with a reduction over all of them. A step announced
#: two ahead is therefore seen by every rank before it gets there.
_AHEAD = 2


def apart_of(config: RunConfig) -> int:
    """By how many steps more than one ranks can differ. A replica of an outer loop may be at the end of a round while
    another one is at the beginning of the round before; with delayed gradients a rank waits a step later.
    """
    outer = config.outer
    rounds = 0 if outer.method == "none" else 2 * outer.period + outer.overlap
    return rounds + config.overlap.delay


class _Control:
    """Ranks can be some steps more than one apart. Once so, they stay: some may still be behind."""

    def __init__(self, progress: Progress | None, rank: int) -> None:
        self._progress, self._rank = progress, rank
        self._apart = 0

    def widen(self, apart: int) -> None:
        """From now on ranks may be this far apart."""
        self._apart = max(self._apart, apart)


class StopControl(_Control):
    """Rank 0 sees the launcher's request and announces a step; every rank stops before that step."""

    def should_stop(self, step: int) -> bool:
        """Whether this rank must not run ``step`` any more."""
        if self._progress is None:
            return False
        if self._rank == 0:
            self._progress.settle()
        announced = self._progress.stop_at()
        if announced is None and self._rank == 0 and self._progress.stop_requested():
            announced = step + _AHEAD + self._apart
            self._progress.announce_stop(announced)
        return announced is not None and step >= announced


class OrderControl(_Control):
    """Rank 0 sees the launcher's numbered orders and announces a step for one after the other."""

    def __init__(self, progress: Progress | None, rank: int) -> None:
        super().__init__(progress, rank)
        self._done = 0

    def due(self, step: int, busy: bool) -> int | None:
        """The number of the order that applies from ``step`` on; ``busy`` while one before it still goes on."""
        if self._progress is None:
            return None
        if self._rank == 0:
            self._progress.settle()
        number, first = self._progress.announced_order()
        # Rank 0 got so far past the announced step that every rank has begun it: it may be replaced.
        free = self._rank == 0 and number == self._done and not busy and step > first + self._apart
        if free and self._progress.requested_order() > number:
            number, first = number + 1, step + _AHEAD + self._apart
            self._progress.announce_order(number, first)
        if number <= self._done or step < first:
            return None
        self._done = number
        return number
