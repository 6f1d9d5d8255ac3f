"""The memory-mapped page of a run's ranks on one host: a header, and for each rank its process and where it stands."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from pathlib import Path

from profilers.records.schema import PHASES
from profilers.steps.rank_status import RankStatus

_MAGIC = b"WBPROG1\0"
_HEADER = struct.Struct("<8sI")
# Everything below is written as single aligned words: ``struct.pack_into`` clears its target first, and a
# reader would now and then see a rank that has not moved since the machine was booted.
_SLOT_WORDS = 8
_SLOT_BYTES = 8 * _SLOT_WORDS
#: Words of the header that this file knows; the others are free for those who give orders.
_STOP_WORD = 3
_ORDER_REQUEST_WORD = 4
#: Number and first step of an order in one word, so that no rank sees one without the other.
_ORDER_WORD = 5
_ORDER_STEP_BITS = 40
DUMP_WORD = 7
_NEVER = -1

#: What a rank can be doing: a step's phases, and the stretches before and after them.
STATES = (*PHASES, "starting", "building", "validation", "finished", "checkpoint", "tracing", "planning",
          "waiting")  # fmt: skip
CODES = {name: code for code, name in enumerate(STATES)}


class SharedStatus:
    """A page that is there, open for reading and writing; with a ``world_size`` it is made, or made anew.

    Raises:
        OSError, ValueError, struct.error: there is no such page.
    """

    def __init__(self, path: Path, world_size: int | None = None) -> None:
        if world_size is not None:
            path.write_bytes(_empty(world_size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        magic, self.world_size = _HEADER.unpack_from(self._map)
        if magic != _MAGIC or len(self._map) != _SLOT_BYTES * (self.world_size + 1):
            raise ValueError(f"{path} is not a progress file")
        self._words = memoryview(self._map).cast("q")
        self._times = memoryview(self._map).cast("d")

    def status(self, rank: int) -> RankStatus:
        """Where a rank tells its step and phase; from now on this process is the rank."""
        self._words[_SLOT_WORDS * (rank + 1)] = os.getpid()
        return self._status(rank)

    def enter_state(self, rank: int, step: int, state: str) -> None:
        """Note by name what a rank is doing: a phase of a step, or what it is about to do outside one."""
        status, code = self.status(rank), CODES[state]
        if state in PHASES:
            status.end_state()
            status.tell(step, code)
        else:
            status.begin_state(step, code)

    def dump_requested(self) -> bool:
        """Whether the launcher asked for them."""
        return self._words[DUMP_WORD] == 1

    def request_order(self, number: int) -> None:
        """The launcher asks for all orders up to this number; one rank answers by announcing a step for each."""
        self._words[_ORDER_REQUEST_WORD] = number

    def requested_order(self) -> int:
        """The number of the last order asked for; 0 without any."""
        return self._words[_ORDER_REQUEST_WORD]

    def announce_order(self, number: int, step: int) -> None:
        """The rank that leads fixes the step before which all ranks begin an order."""
        self._words[_ORDER_WORD] = number << _ORDER_STEP_BITS | step

    def announced_order(self) -> tuple[int, int]:
        """Number and step of the order announced last; (0, 0) before the first."""
        number, step = divmod(self._words[_ORDER_WORD], 1 << _ORDER_STEP_BITS)
        return number, step

    def _process(self, rank: int) -> int:
        """The number of a rank's process; 0 if it has not come."""
        return int(self._words[_SLOT_WORDS * (rank + 1)])

    def _status(self, rank: int) -> RankStatus:
        return RankStatus(self._words, self._times, _SLOT_WORDS * (rank + 1) + 1)

    def close(self) -> None:
        """Release the mapping."""
        self._words.release()
        self._times.release()
        self._map.close()


def shared_page(path: Path, world_size: int) -> SharedStatus:
    """The page that all ranks of a host open alike: whoever comes first has made it, and it is never half there."""
    if not path.exists():
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.write_bytes(_empty(world_size))
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)
        scratch.unlink()
    return SharedStatus(path)


def _empty(world_size: int) -> bytes:
    page = bytearray(_HEADER.pack(_MAGIC, world_size).ljust(_SLOT_BYTES * (world_size + 1), b"\0"))
    struct.pack_into("<q", page, 8 * _STOP_WORD, _NEVER)
    return bytes(page)
