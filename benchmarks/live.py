"""What it costs to tune a run while it goes, where there is nothing to gain.

    python -m benchmarks.live [--rounds 6] [--steps 240] [--save]

A run that has its best values already is tuned in two exact knobs, and beside it, in turns, the same run is left alone;
a third arm is left alone, too (A/A). What is compared is the time from the first step to the last one, by a stop-watch
that knows nothing of records. And of each turn: how much longer its step and the two after it took than those before,
in steps.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _table as table
from benchmarks._stop_watch import HomeWatch
from engine.session import Session
from profilers.analysis.rounds import wall_seconds
from profilers.analysis.steps import join_steps
from profilers.records.reader import RunRecords
from tuning.execution.live.ledger import Ledger
from tuning.execution.live.ongoing_run import runs_of
from tuning.execution.live.starter import Starter
from tuning.execution.live.windows import LiveWindows
from tuning.spec.study_file import StudyFile, parse
from tuning.storage.study_folder import STUDIES
from tuning.study import run_study
from workbench.home import runs

AROUND = 3


def study(steps: int) -> StudyFile:
    """The best of its space is its baseline."""
    tree: dict[str, Any] = {
        "name": "live",
        "ranks": 2,
        "trials": 4,
        "live": {"steps": steps, "checkpoint_every": steps, "look_again": None},
        "base": {
            "model": {"preset": "tiny"},
            "data": {"sequence_length": 128},
            "batch": {"global_batch": 16, "micro_batch": 4},
            "train": {"steps": 14, "warmup": 2, "validation_batches": 0},
            "device": "cpu",
        },
        "space": {"batch.micro_batch": [2, 4], "memory.recompute": ["none", "full"]},
    }
    return parse(tree)


def tuned(home: Path, file: StudyFile) -> str:
    """Search and train on; the run's name."""
    assert file.live is not None
    folder = home / STUDIES / file.name
    windows = LiveWindows(home, Starter(home, folder, file.name, file.live), Ledger(file.live))
    result = run_study(file, folder, windows)
    best = result.best.config if result.best else file.search_space.baseline[0]
    windows.rest(file.search_space.config(best), file.name, lambda: False)
    return runs_of(folder)[-1]


def alone(home: Path, file: StudyFile) -> str:
    """The same run, which nobody turns."""
    assert file.live is not None
    begun: list[Path] = []
    with Session(home) as session:
        config = file.search_space.config(file.search_space.baseline[0])
        config = config.with_values(
            {"train.steps": file.live.steps, "checkpoint.every_steps": file.live.steps}
        )
        session.execute(config, {}, lambda: False, begun.append)
    return begun[0].name


def turn_costs(folder: Path) -> list[float]:
    """Of each turn, the extra time of the steps around it in steps: what they took beyond the median of both sides."""
    records = RunRecords(folder / "records")
    steps = join_steps({rank: records.table(rank, "step") for rank in records.ranks()})
    seconds, places = wall_seconds(steps), sorted({row.step for row in runs.load(folder).changes})
    costs = []
    for place in places:
        after = seconds[place : place + AROUND]
        usual = float(np.median(seconds[place + AROUND : place + 4 * AROUND]))
        if len(after) == AROUND and usual > 0:
            costs.append(float(after.sum()) / usual - AROUND)
    return costs


def main() -> None:
    """Print the table."""
    parser = table.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=240)
    asked = parser.parse_args()
    ratios: dict[str, list[float]] = {"tuned": [], "left alone again (A/A)": []}
    costs: list[float] = []
    for number in range(asked.rounds):
        seconds: dict[str, float] = {}
        order = ["left alone", *ratios]
        for arm in order if number % 2 == 0 else order[::-1]:
            with tempfile.TemporaryDirectory() as name, HomeWatch(Path(name)) as watched:
                file = study(asked.steps)
                run = tuned(Path(name), file) if arm == "tuned" else alone(Path(name), file)
                costs += turn_costs(Path(name) / run)
                seconds[arm] = watched.runs[run].seconds(2, asked.steps)
        for arm, found in ratios.items():
            found.append(math.log(seconds[arm] / seconds["left alone"]))
    rows = []
    for arm, logs in ratios.items():
        middle = statistics.fmean(logs)
        half = 2.0 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
        rows.append([arm, str(len(logs)), f"{math.exp(middle):.3f}",
                     f"{math.exp(middle - half):.3f} to {math.exp(middle + half):.3f}"])  # fmt: skip
    rows.append(["a turn, in steps", str(len(costs)), f"{statistics.median(costs):.2f}", "median"])
    header = ("what", "rounds or turns", "of the time left alone", "95 %")
    table.show("live", f"A run of {asked.steps} steps that is at its best already", header, rows, asked.save)


if __name__ == "__main__":
    main()
