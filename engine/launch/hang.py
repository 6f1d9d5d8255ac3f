"""Which collective the ranks of a hanging run wait in, and which rank did not come.

Ranks that another launcher started are watched as well; their hangs are noted while they last, and never ended.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import replace
from pathlib import Path

from engine.launch.ending import find_culprit, hanging_rank
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from engine.run.progress import WAITING, Progress, RankProgress, stopped_processes
from engine.run.run_folder import FLIGHT, read_json
from profilers.collectives import hang
from profilers.collectives.flight_recorder import Dump, DumpError, merge_dumps, parse
from profilers.collectives.hang import StuckCollective
from profilers.records.writer import RecordWriter

#: Ranks look for the request four times a second; one that is stopped never answers.
_PATIENCE_SECONDS = 1.5
_POLL_SECONDS = 0.05


def explain(progress: Progress, folder: Path) -> StuckCollective | None:
    """The collective that ranks wait in; None if their recorders know of none.

    Waits up to 1.5 s for ranks that do not answer.
    """
    progress.request_dump()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline and len(_files(folder)) < progress.world_size:
        time.sleep(_POLL_SECONDS)
    dumps: dict[int, Dump] = {}
    axes: dict[str, str] = {}
    for rank, path in _files(folder).items():
        document = read_json(path)
        if document is None:
            continue
        try:
            dump = merge_dumps([parse(text.encode(), document["since_unix"]) for text in document["dumps"]])
        except (DumpError, KeyError, AttributeError):
            continue
        members = {group: tuple(ranks) for group, ranks in document.get("members", {}).items()}
        dumps[rank] = replace(dump, members=dump.members | members)
        axes |= document.get("axes", {})
    return hang.find(dumps, axes, progress.world_size)


def outcome_of(
    culprit: RankProgress, is_known: bool, waited_in: StuckCollective | None, last_lines: tuple[str, ...] = ()
) -> RunOutcome:
    """A hang in words: the rank that stands still, and the collective that others wait in. One of which it is
    not known (``is_known``) that it holds up the others is not blamed.
    """
    place = f"in step {culprit.step}" if culprit.step >= 0 else "before its first step"
    place += f" ({culprit.state})" if culprit.state else ""
    reason = f"rank {culprit.rank} made no progress for {culprit.age_seconds:.0f} s {place}"
    reason += "" if is_known else "; it waited, and which rank held the others up is not known"
    reason += f"; {waited_in}" if waited_in else ""
    return RunOutcome(Ending.HANG, reason, culprit.rank if is_known else None, culprit.phase, last_lines)


def _files(folder: Path) -> dict[int, Path]:
    return {int(path.stem.removeprefix("rank-")): path for path in (folder / FLIGHT).glob("rank-*.json")}


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
        culprit = hanging_rank(places, self._patience_seconds, stopped)
        if culprit is None:
            self._suspect, self._stale = None, self._asked
            if self._told:
                self._tell(None)
            return
        suspect, self._suspect = self._suspect, (culprit.rank, culprit.step, culprit.phase)
        if self._told or suspect != self._suspect:
            return
        self._asked = True
        if not self._all_here and culprit.phase in WAITING and culprit.pid not in stopped:
            self._progress.request_dump()  # all wait: whoever holds them up is on another host
            return
        stuck = None if self._stale else explain(self._progress, self._folder)
        culprit, is_known = find_culprit(culprit, places, stuck.held_up_by if stuck else (), stopped)
        self._tell(outcome_of(culprit, is_known, stuck))

    def close(self) -> None:
        """Close the page."""
        self._progress.close()

    def _tell(self, hang: RunOutcome | None) -> None:
        self._told = hang is not None
        document = None if hang is None else hang.as_dict()
        self._writer.event("hang_over" if document is None else "hang", **(document or {}))
        if hang is not None:
            print(f"warning: {hang.reason}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            if (self._folder / run_folder.STATUS).is_file():  # a host with a disk of its own has none
                run_folder.update_status(self._folder, hang=document)
