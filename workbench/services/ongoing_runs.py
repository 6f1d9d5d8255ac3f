"""Numbers of runs that go on, from what they have recorded so far, for pages that are drawn again and again."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from engine.run import run_folder
from profilers.model.run_summary import RunSummary
from workbench.home import runs
from workbench.home.runs import RunView

#: A summary is made again after so long, and after so many times what making it took of the processor: clock time
#: would keep a page from telling who stalls just where training leaves it little of the processors.
FRESH_SECONDS, FRESH_TIMES = 2.0, 20.0
#: Records of steps, of all ranks together, that a recent summary is of: it holds some 500 bytes of each while it is
#: made. And the fewest steps, however many ranks there are.
MOST_RECORDS, LEAST_STEPS = 32_768, 512
#: Runs remembered at a time.
REMEMBERED = 8


def newest_steps(ranks: int) -> int:
    """How many of its last steps a recent summary of a run with so many ranks is of."""
    return max(LEAST_STEPS, MOST_RECORDS // ranks)


class _CachedSummary(NamedTuple):
    summary: RunSummary | None
    records_bytes: int
    expires_at: float


class RunningSummaries:
    """Summaries of the last few runs that somebody looked at; made by one thread at a time.

    With ``recent`` they are of a run's last steps, ``newest_steps`` of it, so that what one takes does not grow as the
    run goes on.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
        *,
        recent: bool = False,
    ) -> None:
        self._clock, self._processor, self._lock = clock, processor, threading.Lock()
        self._recent = recent
        self._made: OrderedDict[Path, _CachedSummary] = OrderedDict()

    def summary(self, view: RunView) -> RunSummary | None:
        """A run's own summary if it has one, else that of its records so far; None while nothing can be said."""
        if view.summary is not None:
            return view.summary
        with self._lock:
            cached, size = self._made.get(view.folder), _records_bytes(view.folder)
            if cached is None or (self._clock() >= cached.expires_at and cached.records_bytes != size):
                started = self._processor()
                newest = newest_steps(view.status.world_size or 1) if self._recent else None
                summary = runs.add_numbers_so_far(view, newest).summary
                processor_seconds = self._processor() - started
                cached = _CachedSummary(
                    summary, size, self._clock() + max(FRESH_SECONDS, FRESH_TIMES * processor_seconds)
                )
                self._made[view.folder] = cached
                while len(self._made) > REMEMBERED:
                    self._made.popitem(last=False)
            return cached.summary


def _records_bytes(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in (folder / run_folder.RECORDS).iterdir())
    except OSError:
        return 0
