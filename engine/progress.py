"""One memory-mapped page per run: where each rank stands, and the step at which all of them stop."""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from engine.rundir import PROGRESS
from profilers.records import PHASES

_MAGIC = b"WBPROG1\0"
_HEADER = struct.Struct("<8sI")
_SLOT = struct.Struct("<qqdB")
_SLOT_BYTES = 64
_REQUEST_AT = 16
_STOP_AT = struct.Struct("<q")
_STOP_OFFSET = 24
_NEVER = -1

#: What a rank can be doing: a step's phases, and the stretches before and after them.
STATES = (*PHASES, "starting", "building", "validation", "finished")
_CODES = {name: code for code, name in enumerate(STATES)}
#: States in which a rank waits for others; a rank that hangs elsewhere is the cause, not the victim.
WAITING = frozenset({"communication_exposed", "bubble"})


@dataclass(frozen=True, slots=True)
class RankProgress:
    """Where one rank stands. ``age_seconds`` is the time since it last changed phase."""

    rank: int
    pid: int
    step: int
    phase: str
    age_seconds: float


class Progress:
    """The page of one run, open for reading and writing. The launcher creates it, ranks write their own slot."""

    def __init__(self, folder: Path, world_size: int | None = None) -> None:
        path = folder / PROGRESS
        if world_size is not None:
            size = _SLOT_BYTES * (world_size + 1)
            path.write_bytes(_HEADER.pack(_MAGIC, world_size).ljust(size, b"\0"))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.world_size = _HEADER.unpack_from(self._map)[1]
        if world_size is not None:
            _STOP_AT.pack_into(self._map, _STOP_OFFSET, _NEVER)

    def enter(self, rank: int, step: int, code: int) -> None:
        """Note that a rank changed phase; costs well under a microsecond."""
        _SLOT.pack_into(self._map, _SLOT_BYTES * (rank + 1), os.getpid(), step, time.monotonic(), code)

    def enter_state(self, rank: int, step: int, state: str) -> None:
        """As :meth:`enter`, by name."""
        self.enter(rank, step, _CODES[state])

    def ranks(self) -> list[RankProgress]:
        """Every rank that has written its slot."""
        found = []
        for rank in range(self.world_size):
            pid, step, changed, code = _SLOT.unpack_from(self._map, _SLOT_BYTES * (rank + 1))
            if pid:
                found.append(
                    RankProgress(rank, pid, step, STATES[code], max(0.0, time.monotonic() - changed))
                )
        return found

    def request_stop(self) -> None:
        """The launcher asks; rank 0 answers by announcing a step."""
        self._map[_REQUEST_AT] = 1

    def stop_requested(self) -> bool:
        """Whether the launcher asked for a stop."""
        return self._map[_REQUEST_AT] == 1

    def announce_stop(self, step: int) -> None:
        """Rank 0 fixes the first step that no rank runs."""
        _STOP_AT.pack_into(self._map, _STOP_OFFSET, step)

    def stop_at(self) -> int | None:
        """The announced step, if there is one."""
        step: int = _STOP_AT.unpack_from(self._map, _STOP_OFFSET)[0]
        return None if step == _NEVER else step

    def close(self) -> None:
        """Release the mapping."""
        self._map.close()


def read(folder: Path) -> list[RankProgress]:
    """Where the ranks of a run stand; empty when there is no readable progress file."""
    try:
        progress = Progress(folder)
    except (OSError, ValueError, struct.error):
        return []
    try:
        return progress.ranks()
    finally:
        progress.close()
