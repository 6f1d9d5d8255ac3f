"""A rank that runs out of memory: how the run ends, which rank it names, and after how many seconds.

    python -m benchmarks.oom_endings [--times 5] [--save]

From a step on the kernel grants one rank no more than it has. Counted is from then to the ending in ``status.json``, so
the rest of that rank's step is in it. On gloo, and on the tests' backend with NCCL's habits (not on NCCL itself); under
our launcher, and under torchrun.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _table as table
from engine.run import run_folder
from engine.run.devices.selection import BACKEND_VARIABLE
from engine.session import Session
from tests.support.engine.memory_limit import Starving, large, when_there
from tests.support.engine.torchrun import on_one_host
from tests.support.gpu import like_nccl

AXES: dict[str, dict[str, Any]] = {"pp=2": {"parallel__pp": 2}, "tp=2": {"parallel__tp": 2}}
BACKENDS = {"gloo": "", "NCCL's habits": like_nccl.BACKEND}
STARTERS = ("launcher", "torchrun")
BAR_SECONDS = 5.0


class Ending(NamedTuple):
    """Of one run."""

    outcome: str
    rank: int | None
    seconds: float


def main() -> int:
    """Measure, and print the table; 1 if an ending was wrong or late."""
    parser = table.parser(__doc__)
    parser.add_argument("--times", type=int, default=5, help="runs of each case")
    parser.add_argument("--starter", choices=STARTERS, action="append", help="only this one")
    given = parser.parse_args()
    rows, good = [], True
    for starter, backend, axis, rank in itertools.product(given.starter or STARTERS, BACKENDS, AXES, (0, 1)):
        os.environ[BACKEND_VARIABLE] = BACKENDS[backend]
        found = list(endings(starter, axis, rank, given.times))
        right = sum((one.outcome, one.rank) == ("oom", rank) for one in found)
        seconds = [one.seconds for one in found]
        good &= right == len(found) and max(seconds) < BAR_SECONDS
        rows.append([starter, backend, axis, str(rank), f"{right} of {len(found)}",
                     f"{sorted(seconds)[len(seconds) // 2]:.1f}", f"{max(seconds):.1f}"])  # fmt: skip
        print(" | ".join(rows[-1]), flush=True)
    header = ["started by", "backend", "layout", "rank", "oom of that rank", "median s", "slowest s"]
    table.show(
        "oom_endings", "Endings of runs of which one rank runs out of memory", header, rows, given.save
    )
    return int(not good)


def endings(starter: str, axis: str, rank: int, times: int) -> Iterator[Ending]:
    """So many runs, each in processes of its own: a bad ending replaces them."""
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(times):
            run = under_launcher if starter == "launcher" else under_torchrun
            yield run(Path(scratch) / str(number), axis, rank)


def under_launcher(home: Path, axis: str, rank: int) -> Ending:
    """One run of our own."""
    starving = Starving(rank)
    with Session(home) as session:
        outcome, _ = session.execute(large(**AXES[axis]), {}, lambda: False, starving)
        return Ending(outcome.ending.value, outcome.rank, time.monotonic() - starving.since)


def under_torchrun(home: Path, axis: str, rank: int) -> Ending:
    """One run of torchrun's; its ending is looked for every 20 ms."""
    home.mkdir(parents=True)
    starving, out = Starving(rank), home / "runs"
    when_there(out, starving)
    with on_one_host(large(**AXES[axis]), out) as process:
        while process.poll() is None:
            for folder in out.glob("*-*-*"):
                status = run_folder.read_json(folder / run_folder.STATUS) or {}
                if status.get("state") == "ended":
                    outcome = status["outcome"]
                    return Ending(outcome["ending"], outcome["rank"], time.monotonic() - starving.since)
            time.sleep(0.02)
    return Ending("none", None, float("inf"))


if __name__ == "__main__":
    raise SystemExit(main())
