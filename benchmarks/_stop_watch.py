"""A stop-watch over runs: another process than the ranks, which knows nothing of what they record."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from pathlib import Path
from typing import Self

from engine.run.progress import Progress
from engine.run.run_folder import PROGRESS

_POLL_SECONDS = 1e-3
_LOOK_SECONDS = 0.2
#: What a rank does once its last step is over.
_AFTER = ("validation", "checkpoint", "finished")


class StopWatch:
    """When each rank of a run was first seen in each step, by the monotonic clock of this process.

    The end of the last step is the begin of what follows it: the run evaluates, saves or ends.
    """

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], float] = {}
        self._progress: Progress | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread()

    def begin(self, folder: Path) -> None:
        """Watch a run that begins."""
        self._thread = threading.Thread(target=self._watch, args=(folder,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The run is over."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def look(self, folder: Path) -> None:
        """Note where the ranks are now."""
        with contextlib.suppress(OSError, ValueError):
            self._progress = self._progress or Progress(folder)
        now = time.monotonic()
        for rank in self._progress.ranks() if self._progress else ():
            self.seen.setdefault((rank.rank, rank.step + (rank.phase in _AFTER)), now)

    def seconds(self, first: int, end: int) -> float:
        """From the begin of one step to that of another, the mean over ranks: they are not at one step at one time.

        Raises:
            KeyError: a rank was never seen at one of them.
        """
        ranks = {rank for rank, _ in self.seen}
        return statistics.fmean(self.seen[rank, end] - self.seen[rank, first] for rank in ranks)

    def _watch(self, folder: Path) -> None:
        while not self._ended.is_set():
            self.look(folder)
            time.sleep(_POLL_SECONDS)


class HomeWatch:
    """A stop-watch for every run that begins in a home while this is open, by the name of its folder."""

    def __init__(self, home: Path) -> None:
        self.runs: dict[str, StopWatch] = {}
        self._home, self._ended = home, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        looked, going = 0.0, dict[Path, StopWatch]()
        while not self._ended.is_set():
            now = time.monotonic()
            if now - looked > _LOOK_SECONDS:
                looked = now
                for path in self._home.glob(f"*/{PROGRESS}"):
                    if path.parent.name not in self.runs:
                        # Only the newest run is going on: what is over does not move.
                        going = {path.parent: self.runs.setdefault(path.parent.name, StopWatch())}
            for folder, watch in going.items():
                watch.look(folder)
            time.sleep(_POLL_SECONDS)
