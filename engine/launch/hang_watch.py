"""Notes that ranks hang which another launcher started: while they do, for it is not ours to end them."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from engine import rundir
from engine.launch.hang import explain, outcome_of, stopped_processes
from engine.launch.verdict import blamed, hung
from engine.outcome import RunOutcome
from engine.progress import WAITING, Progress
from profilers.records.writer import RecordWriter


class HangWatch:
    """Looks at the ``ranks`` of one host on its page of progress.

    What it finds stands in ``status.json`` as ``hang`` while it lasts, and in events ``hang`` and ``hang_over``.

    Raises:
        OSError, ValueError: there is no such page.
    """

    def __init__(
        self, folder: Path, page: str, ranks: int, patience_seconds: float, writer: RecordWriter
    ) -> None:
        self._folder, self._patience_seconds, self._writer = folder, patience_seconds, writer
        self._progress = Progress(folder, name=page)
        self._all_here = ranks == self._progress.world_size
        self._suspect: tuple[int, int, str] | None = None
        # Ranks answer once: what they said of one hang says nothing of the next.
        self._told = self._asked = self._stale = False

    def look(self) -> None:
        """What is found at two looks is noted. May take 1.5 s then, since ranks are asked what they wait in."""
        places = self._progress.ranks()
        stopped = stopped_processes(places, self._patience_seconds)
        culprit = hung(places, self._patience_seconds, stopped)
        if culprit is None:
            self._moved_on()
            return
        suspect, self._suspect = self._suspect, (culprit.rank, culprit.step, culprit.phase)
        if self._told or suspect != self._suspect:
            return
        self._asked = True
        if not self._all_here and culprit.phase in WAITING and culprit.pid not in stopped:
            self._progress.request_dump()  # all wait: whoever holds them up is on another host
            return
        found = None if self._stale else explain(self._progress, self._folder)
        culprit, known = blamed(culprit, places, found.held_up_by if found else (), stopped)
        self._tell(outcome_of(culprit, known, found))

    def close(self) -> None:
        """Lets go of the page."""
        self._progress.close()

    def _moved_on(self) -> None:
        self._suspect, self._stale = None, self._asked
        if self._told:
            self._tell(None)

    def _tell(self, hang: RunOutcome | None) -> None:
        self._told = hang is not None
        found = None if hang is None else hang.as_dict()
        self._writer.event("hang_over" if found is None else "hang", **(found or {}))
        if hang is not None:
            print(f"warning: {hang.reason}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            if (self._folder / rundir.STATUS).is_file():  # a host with a disk of its own has none
                rundir.update_status(self._folder, hang=found)
