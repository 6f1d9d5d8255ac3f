"""Which rank of a job a process is, and what it tells of itself in the run's folder."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Names in the folder of a run: one file for each rank, and the page on which they stand.
SEATS = "seats"
#: Why a process is not recorded, in one line; and that some process loaded torch. The hook writes both.
NOT_RECORDED = "not-recorded"
TORCH_SEEN = "torch-seen"
PROGRESS = "progress"
RECORDS = "records"
FLIGHT = "flight"
ORDERS = "orders"
SNAPSHOTS = "snapshots"
TRACES = "traces"
#: How often torchrun has started its ranks again.
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"


def trace_name(first: int, steps: int) -> str:
    """The folder of a trace that was ordered over so many steps."""
    return f"step-{first}-{steps}"


@dataclass(slots=True)
class RankRegistration:
    """One rank's place; ``restarted`` if a process before this one had it. ``facts`` are what its file says."""

    folder: Path
    rank: int
    world_size: int
    facts: dict[str, Any]
    restarted: bool = False

    @property
    def file(self) -> Path:
        """What others read of it."""
        return self.folder / SEATS / f"rank-{self.rank}.json"

    def tell(self, **facts: Any) -> None:
        """Add to what is told; a full disk loses it."""
        self.facts |= facts
        with contextlib.suppress(OSError):
            _write(self.file.with_name(f".{self.file.name}.{os.getpid()}"), self.facts).replace(self.file)


def claim(folder: Path, rank: int, world_size: int, **facts: Any) -> RankRegistration | str:
    """The seat of a rank, or why this process has none: each is taken once, and again only after a restart.

    Raises:
        OSError: the folder is gone, or cannot be written.
    """
    restarts = int(os.environ.get(_RESTARTS, "0") or 0)
    registration = {"rank": rank, "world_size": world_size, "pid": os.getpid(), "restarts": restarts, **facts}
    seat = RankRegistration(folder, rank, world_size, registration)
    scratch = _write(seat.file.with_name(f".{seat.file.name}.{os.getpid()}"), registration)
    try:
        os.link(scratch, seat.file)
    except FileExistsError:
        before = json.loads(seat.file.read_text(encoding="utf-8"))
        if int(before["restarts"]) >= restarts:
            return (
                f"process {os.getpid()} came as rank {rank} after process {before['pid']}, and is not recorded; "
                "give it a `workbench run` of its own"
            )
        seat.restarted = True
        seat.tell()
    finally:
        scratch.unlink(missing_ok=True)
    return seat


def _write(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
