"""A link that changes under a run: tuned as it goes, beside every static setting over the same changes.

    python -m benchmarks.live_changing [--steps 900] [--seeds 1] [--minutes 9] [--save]

The lab of ``live_worth``; what joins its islands carries 100 Mbit/s for the first third of the steps, 1,000 for the
second, and 100 again. The tuned run is ``workbench tune --live``, which looks again once its steps became slower or
faster. The best static setting is known only in hindsight: the fastest of whole runs with each, of those whose
held-out loss is within the guard of plain data parallelism. With ``--save`` each ended run is kept in
``results/live_changing.json``, so the benchmark goes on where it was stopped. Seconds are those of a stop-watch from
the second step to the last.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import _table as table
from benchmarks._stop_watch import HomeWatch
from benchmarks.live_worth import GUARD, Row, alone, baseline, study
from engine.launch.lab import build, registry
from engine.run.progress import Progress
from engine.run.run_folder import PROGRESS
from workbench.home import runs

KEPT = table.RESULTS / "live_changing.json"
SLOW, FAST = 100_000, 1_000_000
TUNED, PLAIN = "tuned as it goes", "none"
#: Each lossy method of the study's space with each of its ranks; buckets as usual.
STATIC: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "int8": {"compression.method": "int8"},
    "int4": {"compression.method": "int4"},
    "topk": {"compression.method": "topk"},
    "powersgd, rank 2": {"compression.method": "powersgd", "compression.rank": 2},
    "powersgd, rank 4": {"compression.method": "powersgd", "compression.rank": 4},
}
_POLL_SECONDS = 0.05


@contextlib.contextmanager
def changing(home: Path, steps: int) -> Iterator[list[int]]:
    """While this is open the run in ``home`` has another link in its second third; tells the steps of the changes."""
    changes: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        for threshold, rate in ((steps // 3, FAST), (2 * steps // 3, SLOW)):
            while (step := _slowest(home)) < threshold:
                if ended.wait(_POLL_SECONDS):
                    return
            for one in registry.list_labs():
                build.shape(
                    [replace(link, rate_kbit=rate) for link in one.links if link.name.startswith("island")]
                )
            changes.append(step)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield changes
    finally:
        ended.set()
        thread.join()


def _slowest(home: Path) -> int:
    """The step of the rank that is furthest behind, in the run that goes; -1 before there is one."""
    for path in home.glob(f"*/{PROGRESS}"):
        with contextlib.suppress(OSError, ValueError):
            if ranks := Progress(path.parent).ranks():
                return min(rank.step for rank in ranks)
    return -1


def tuned(home: Path, steps: int, seed: int) -> str:
    """By the command line, as a user would; the name of its run."""
    live = {"steps": steps, "checkpoint_every": steps}
    given = home / "study.yaml"
    given.write_text(study(steps, seed, live=live).text, encoding="utf-8")
    command = [sys.executable, "-m", "workbench", "tune", "--live", str(given), "--home", str(home)]
    subprocess.run(command, check=True)
    (run,) = (path.parent.name for path in home.glob(f"*/{PROGRESS}"))
    return run


def measure(arm: str, steps: int, seed: int) -> Row:
    """One whole run."""
    with tempfile.TemporaryDirectory() as name, HomeWatch(Path(name)) as watched:
        home = Path(name)
        with changing(home, steps) as changes:
            if arm == TUNED:
                run = tuned(home, steps, seed)
            else:
                run = alone(home, baseline(study(steps, seed)).with_values(STATIC[arm]), steps)
        summary = runs.load(home / run).summary
        assert summary is not None
        assert len(changes) == 2, changes
        seconds = watched.runs[run].seconds(1, steps)
        return {
            "seconds": seconds,
            "loss": summary.validation_loss,
            "changed": changes,
            "commit": table.commit(),
        }


def rows_of(kept: dict[str, dict[str, Row]]) -> list[list[str]]:
    """Each run of each seed, over the best static one of that seed."""
    found = []
    for name, of in kept.items():
        limit = of[PLAIN]["loss"] * (1 + GUARD) if PLAIN in of else float("inf")
        allowed = {arm: row["seconds"] for arm, row in of.items() if arm != TUNED and row["loss"] <= limit}
        best = min(allowed, key=lambda arm: allowed[arm], default=None)
        for arm, row in of.items():
            over = f"{row['seconds'] / allowed[best] - 1:+.1%}" if best else "-"
            note = (
                "best static" if arm == best else "" if arm == TUNED or arm in allowed else "loses too much"
            )
            found.append([name, arm, f"{row['seconds']:.0f}", over, f"{row['loss']:.3f}", note])
    return found


def main() -> None:
    """Measure what is not kept yet, as long as there is time, and print the table."""
    parser = table.parser(__doc__)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=9.0)
    asked = parser.parse_args()
    kept: dict[str, dict[str, Row]] = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    end = time.monotonic() + 60 * asked.minutes
    for seed in range(asked.seeds):
        known = kept.setdefault(f"{asked.steps} steps, seed {seed}", {})
        for arm in (TUNED, *STATIC):
            if arm not in known and time.monotonic() < end:
                known[arm] = measure(arm, asked.steps, seed)
                if asked.save:
                    table.keep(KEPT, kept)
    header = ("run", "setting", "seconds", "over the best static one", "held-out loss", "")
    title = f"A run on two islands whose link goes from {SLOW // 1000} to {FAST // 1000} Mbit/s and back"
    table.show("live_changing", title, header, rows_of(kept), asked.save)


if __name__ == "__main__":
    main()
