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
#: Runs remembered at a time.
REMEMBERED = 8


class _CachedSummary(NamedTuple):
    summary: RunSummary | None
    records_bytes: int
    expires_at: float


class RunningSummaries:
    """Summaries of the last few runs that somebody looked at; made by one thread at a time."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock, self._processor, self._lock = clock, processor, threading.Lock()
        self._made: OrderedDict[Path, _CachedSummary] = OrderedDict()

    def summary(self, view: RunView) -> RunSummary | None:
        """A run's own summary if it has one, else that of its records so far; None while nothing can be said."""
        if view.summary is not None:
            return view.summary
        with self._lock:
            cached, size = self._made.get(view.folder), _records_bytes(view.folder)
            if cached is None or (self._clock() >= cached.expires_at and cached.records_bytes != size):
                started = self._processor()
                summary = runs.add_numbers_so_far(view).summary
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
