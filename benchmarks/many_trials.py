"""A study of many trials: how long one takes to propose and to keep, and how its folder grows.

    python benchmarks/many_trials.py [--trials 10000] [--sampler tpe] [--save]

Trials cost nothing here, so that all that is measured is the tuner's: between the end of one execution and the begin of
the next it judges, journals, tells Optuna and its file, writes what people see, and proposes.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import _table
from benchmarks._made_up import MadeUp
from engine.config.run_config import RunConfig
from tuning.execution.executor import OnStart, Ran, ShouldStop
from tuning.spec import study_file
from tuning.study import run_study

PARTS = 5
_MIB = 2**20
_FILES = ("journal.jsonl", "result.json", "optuna.db")


class Watched(MadeUp):
    """Notes when each execution begins and ends, and how large the folder is then."""

    def __init__(self, folder: Path) -> None:
        super().__init__(fails_one_in=20)
        self.folder = folder
        self.gaps: list[float] = []
        self.worked: list[float] = []
        self.bytes: list[dict[str, int]] = []
        self._ended = self._processor = 0.0

    def __call__(
        self, config: RunConfig, labels: dict[str, str], should_stop: ShouldStop, on_start: OnStart = None, /
    ) -> Ran:
        if self._ended:
            self.gaps.append(time.monotonic() - self._ended)
            self.worked.append(time.process_time() - self._processor)
            self.bytes.append({name: _size(self.folder / name) for name in _FILES})
        found = super().__call__(config, labels, should_stop, on_start)
        self._ended, self._processor = time.monotonic(), time.process_time()
        return found


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def file_of(trials: int, sampler: str) -> study_file.StudyFile:
    """A study whose space has more points than any study measures."""
    tree: dict[str, Any] = {
        "name": "many",
        "ranks": 64,
        "trials": trials,
        "sampler": sampler,
        "base": {"batch": {"global_batch": 256, "micro_batch": 1}, "train": {"steps": 120}},
        "space": {
            "parallel.tp": [1, 2, 4],
            "parallel.pp": [1, 2, 4],
            "parallel.zero_stage": [0, 1, 2, 3],
            "batch.micro_batch": [1, 2, 4],
            "memory.recompute": ["none", "selective", "full"],
            "overlap.bucket_mb": {"low": 1.0, "high": 64.0, "log": True},
        },
    }
    return study_file.parse(tree)


def rows(watched: Watched) -> list[list[str]]:
    """One row for each part of the study."""
    size, found = len(watched.gaps), []
    for part in range(PARTS):
        first, last = size * part // PARTS, size * (part + 1) // PARTS
        gaps, at_end = watched.gaps[first:last], watched.bytes[last - 1]
        found.append(
            [
                f"{first + 1:,} to {last:,}",
                f"{median(watched.worked[first:last]) * 1e3:.0f}",
                f"{median(gaps) * 1e3:.0f}",
                f"{float(np.percentile(gaps, 95)) * 1e3:.0f}",
                f"{max(gaps) * 1e3:,.0f}",
                *(f"{at_end[name] / _MIB:.1f}" for name in _FILES),
                f"{sum(at_end.values()) / last / 1e3:.1f}",
            ]
        )
    return found


def main() -> None:
    """The table."""
    parser = _table.parser(__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--sampler", default="tpe")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        watched = Watched(Path(home) / "many")
        began = time.monotonic()
        found = run_study(file_of(given.trials, given.sampler), watched.folder, watched)
        seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{found.trials_done:,} trials in {seconds:.0f} s, {peak:,.0f} MiB of memory at most")
    header = ["trials", "processor, median ms", "between trials, median ms", "p95 ms", "max ms", "journal MiB",
              "result MiB", "Optuna's MiB",
              "all, kB a trial"]  # fmt: skip
    title = f"A study of {found.trials_done:,} trials, {given.sampler}"
    _table.show("many_trials", title, header, rows(watched), given.save)


if __name__ == "__main__":
    main()
