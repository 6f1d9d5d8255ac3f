"""One memory-mapped page per run: where each rank stands, and the step at which all of them stop."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import psutil

from engine.run.run_folder import PROGRESS
from profilers.steps.rank_status import Standing
from profilers.steps.shared_status import DUMP_WORD, STATES, SharedStatus

#: The page of a host of the run other than rank 0's: memory is shared within one host only.
PAGE_OF_HOST = f"{PROGRESS}-{{}}"

_REQUEST_WORD = 2
_STOP_WORD = 3
_REDONE_WORD = 6
_NEVER = -1
#: The end of a run in one word, so that no rank sees a part of it: two steps of so many bits, and whether it is whole.
_STEP_BITS = 31

#: States in which a rank waits for others; a rank that hangs elsewhere is the cause, not the victim.
WAITING = frozenset({"communication_exposed", "bubble"})
#: Outside of steps a rank may stand still for so many times ``train.step_timeout_seconds``.
PATIENCE_OUTSIDE_STEPS = 5.0


class End(NamedTuple):
    """``step`` is the first that no rank runs, which holds from ``first`` on: the run ``is_whole`` then, or stopped."""

    step: int
    first: int
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class RankProgress:
    """Where one rank stands. ``age_seconds`` is the time since it last changed phase or was seen moving.

    Outside a step ``state`` is what it does, for ``state_seconds`` by now, and so is ``phase`` unless it waits for
    others: evaluation and checkpoints have phases of their own, which start ``age_seconds`` anew.

    Of a rank on ``another_host`` than rank 0's, neither its process number nor its age means anything here.
    """

    rank: int
    pid: int
    step: int
    phase: str
    age_seconds: float
    another_host: bool = False
    state: str | None = None
    state_seconds: float = 0.0


class Progress(SharedStatus):
    """The page of one run, open for reading and writing. The launcher creates it, ranks write their own slot."""

    def __init__(self, folder: Path, world_size: int | None = None, name: str = PROGRESS) -> None:
        super().__init__(folder / name, world_size)

    def ranks(self) -> list[RankProgress]:
        """Every rank that has written its slot; ages at one moment, so that they tell who stands still for longer."""
        places, now = [], time.monotonic()
        for rank in range(self.world_size):
            if pid := self._process(rank):
                places.append(_place(rank, pid, self._status(rank).read(), now))
        return places

    def request_stop(self) -> None:
        """The launcher asks; rank 0 answers by announcing a step."""
        self._words[_REQUEST_WORD] = 1

    def stop_requested(self) -> bool:
        """Whether the launcher asked for a stop."""
        return self._words[_REQUEST_WORD] == 1

    def request_dump(self) -> None:
        """The launcher asks every rank for its last collectives."""
        self._words[DUMP_WORD] = 1

    def announce_end(self, end: End) -> None:
        """Rank 0 fixes the first step that no rank runs."""
        self._words[_STOP_WORD] = (end.first << _STEP_BITS | end.step) << 1 | end.is_whole

    def end(self) -> End | None:
        """What was announced last, if anything was."""
        word = self._words[_STOP_WORD]
        if word == _NEVER:
            return None
        first, step = divmod(word >> 1, 1 << _STEP_BITS)
        return End(step, first, bool(word & 1))

    def redo(self, steps: int) -> None:
        """Rank 0 tells that the run went back by so many steps: announced ones are counted in all that were done."""
        self._words[_REDONE_WORD] += steps

    def redone_steps(self) -> int:
        """How many steps were done again so far."""
        return int(self._words[_REDONE_WORD])

    def settle(self) -> None:
        """Wait until every host has heard what was announced; on one host it has at once."""


def _place(rank: int, pid: int, standing: Standing, now: float) -> RankProgress:
    age_seconds = max(0.0, now - standing.since)
    if not standing.state:
        return RankProgress(rank, pid, standing.step, STATES[standing.code], age_seconds)
    code = standing.code if STATES[standing.code] in WAITING else standing.state
    since = max(0.0, now - standing.state_since)
    return RankProgress(
        rank, pid, standing.step, STATES[code], age_seconds, state=STATES[standing.state], state_seconds=since
    )


def last_announcement(folder: Path) -> tuple[int, int]:
    """Number and step of a run's last announced order; (0, 0) before the first or without a progress file."""
    try:
        progress = Progress(folder)
    except (OSError, ValueError, struct.error):
        return 0, 0
    try:
        number, step = progress.announced_order()
        return number, max(0, step - progress.redone_steps())
    finally:
        progress.close()


def read_all(folder: Path) -> list[RankProgress]:
    """Where all ranks of a run stand, if the pages of all hosts are in its folder.

    A shared disk may show those of other hosts late.
    """
    others = [path.name for path in folder.glob(PAGE_OF_HOST.format("*"))]
    ranks = read(folder) + [
        replace(rank, another_host=True) for name in others for rank in read(folder, name)
    ]
    return sorted(ranks, key=lambda place: place.rank)


def read(folder: Path, name: str = PROGRESS) -> list[RankProgress]:
    """Where the ranks of one page stand, by default of rank 0's host; empty when there is no readable one."""
    try:
        progress = Progress(folder, name=name)
    except (OSError, ValueError, struct.error):
        return []
    try:
        return progress.ranks()
    finally:
        progress.close()


def stopped_processes(ranks: list[RankProgress], patience_seconds: float) -> frozenset[int]:
    """Of the ranks that have not moved for so long, the processes that the kernel reports as stopped."""
    stopped = set()
    for rank in ranks:
        if rank.age_seconds > patience_seconds:
            try:
                if psutil.Process(rank.pid).status() == psutil.STATUS_STOPPED:
                    stopped.add(rank.pid)
            except psutil.Error:
                continue
    return frozenset(stopped)
