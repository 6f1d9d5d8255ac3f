"""Time from one trial's last step to the next one's first step on warm ranks, beside a cold torchrun start."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import _table as table
from engine.config.run_config import RunConfig, parse
from engine.run import run_folder
from engine.session import Session
from profilers.records.reader import RunRecords
from profilers.records.schema import StepSample

TRIALS = 12
COLD_STARTS = 3
BASE = {
    "train": {"steps": 4, "warmup": 1},
    "batch": {"global_batch": 16, "micro_batch": 2},
    "device": "cpu",
}
LAYOUTS = [{"dp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "pp": 2}, {"dp": 4, "zero_stage": 3}, {"tp": 2, "pp": 2}]


def config(number: int) -> RunConfig:
    """The configuration of a trial: another layout each time, as in a study."""
    return parse(BASE | {"parallel": LAYOUTS[number % len(LAYOUTS)]})


def steps(folder: Path) -> list[StepSample]:
    """Rank 0's steps."""
    return RunRecords(folder / run_folder.RECORDS).table(0, "step").rows()  # type: ignore[return-value]


def warm(home: Path) -> list[float]:
    """Seconds between consecutive trials of one session."""
    gaps, last_end = [], None
    with Session(home) as session:
        for number in range(TRIALS + 1):
            _, summary = session.execute(config(number), {}, lambda: False)
            taken = steps(home / summary.id)
            if last_end is not None:
                gaps.append(taken[0].start_unix - last_end)
            last_end = taken[-1].start_unix + taken[-1].step_seconds
    return gaps


def cold(home: Path) -> list[float]:
    """Seconds from starting torchrun to the first step of the same trials."""
    waits = []
    for number in range(COLD_STARTS):
        given, out = home / f"{number}.json", home / f"cold-{number}"
        given.write_text(config(number).dumps(), encoding="utf-8")
        began = time.time()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
        command += ["-m", "engine.launch.torchrun", str(given), "--out", str(out)]
        subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[1])
        waits.append(steps(next(out.iterdir()))[0].start_unix - began)
    return waits


def main() -> None:
    """Measure both and print the table."""
    save = table.parser(__doc__).parse_args().save
    with tempfile.TemporaryDirectory() as scratch:
        measured = {"warm ranks": warm(Path(scratch) / "warm"), "cold torchrun": cold(Path(scratch))}
    rows = [
        [name, str(len(seconds)), *(f"{f(seconds):.2f}" for f in (min, statistics.median, max))]
        for name, seconds in measured.items()
    ]
    title = "From one trial's last step to the next one's first (4 gloo ranks, layout changes every trial)"
    table.show("turnover", title, ["start", "n", "min s", "median s", "max s"], rows, save)


if __name__ == "__main__":
    main()
