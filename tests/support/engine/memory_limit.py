"""One rank of a run that really finds no memory: from a step on the kernel grants its process no more than it has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from engine.config.run_config import RunConfig
from engine.run import progress
from tests.support.runs import small

STEP = 2
#: Matrices of megabytes, which malloc maps one by one and gives back at once: each step asks for them anew.
LARGE: dict[str, Any] = {
    "model__layers": 2,
    "model__hidden": 256,
    "model__ffn_hidden": 1024,
    "data__sequence_length": 256,
    "batch__global_batch": 4,
    "batch__micro_batch": 2,
    "train__steps": 10_000,
    "train__validation_batches": 0,
    "environment__MALLOC_MMAP_THRESHOLD_": 1 << 16,
}


def large(**values: Any) -> RunConfig:
    """A run that goes on until a rank is starved."""
    return small(**LARGE | values)


class Starving:
    """Called with a run's folder, it lets one rank go hungry once that has done some steps."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        #: When the rank was first held to what it had, by ``time.monotonic``; 0 before.
        self.since = 0.0

    def __call__(self, folder: Path) -> None:
        """Return at once; it happens beside."""
        threading.Thread(target=self._starve, args=(folder,), daemon=True).start()

    def _starve(self, folder: Path) -> None:
        deadline, step, least = time.monotonic() + 300, STEP, float("inf")
        while time.monotonic() < deadline:
            place = next((one for one in progress.read(folder) if one.rank == self._rank), None)
            if place is not None and place.step >= step and place.phase == "forward":
                try:
                    least = min(least, _hold(place.pid, least))
                except (psutil.Error, OSError):
                    return
                self.since, step = self.since or time.monotonic(), place.step + 1
            time.sleep(0.001)


def _hold(pid: int, most: float) -> int:
    """Keep a process to what it has; those bytes."""
    rows = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    had = next(int(row.split()[1]) << 10 for row in rows if row.startswith("VmData:"))
    _, hard = psutil.Process(pid).rlimit(psutil.RLIMIT_DATA)
    psutil.Process(pid).rlimit(psutil.RLIMIT_DATA, (int(min(most, had)), hard))
    return had


def when_there(out: Path, act: Callable[[Path], None]) -> None:
    """Call it with the first run folder under ``out``, beside."""

    def look() -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            for folder in out.glob("*-*-*"):
                act(folder)
                return
            time.sleep(0.02)

    threading.Thread(target=look, daemon=True).start()
