"""What it costs to tune a run while it goes, where there is nothing to gain.

    python -m benchmarks.live [--rounds 6] [--steps 240] [--turns 12] [--save]

A run that has its best values already is tuned in three exact knobs, and beside it, in turns, the same run is left
alone; a third arm is left alone, too (A/A). Its two ranks are two hosts of the lab at a fixed rate, where a step takes
what the link does and the machine can tell. What is compared is the time from the first step to the last one, by a
stop-watch that knows nothing of records. And of each turn: how much longer its step and the two after it took than
those before, in steps. A second table has that by knob: a run is turned there and back every ``APART`` steps, and the
A/A row is of a run that nobody turns, at the same steps.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _table as table
from benchmarks._stop_watch import HomeWatch
from engine.run import progress
from engine.session import Session
from profilers.analysis.rounds import wall_seconds
from profilers.analysis.steps import join_steps
from profilers.records.reader import RunRecords
from tuning.execution.live.exploitation import run_to_the_end, windows_of
from tuning.execution.live.ongoing_run import runs_of
from tuning.spec.study_file import StudyFile, parse
from tuning.storage import commands
from tuning.storage.study_folder import STUDIES
from tuning.study import run_study
from workbench.home import runs

AROUND = 3
#: Of the lab's link, in Mbit/s.
RATE = 100


def study(steps: int) -> StudyFile:
    """The best of its space is its baseline."""
    tree: dict[str, Any] = {
        "name": "live",
        "ranks": 2,
        "trials": 6,
        "live": {"steps": steps, "checkpoint_every": steps, "look_again": None},
        "base": {
            "model": {"preset": "tiny"},
            "data": {"sequence_length": 128},
            "batch": {"global_batch": 16, "micro_batch": 4},
            "train": {"steps": 14, "warmup": 2, "validation_batches": 0},
            "overlap": {"bucket_mb": 1.0},
            "lab": {"hosts": 2, "rate_mbit": RATE},
            "device": "cpu",
        },
        "space": {
            "batch.micro_batch": [2, 4],
            "memory.recompute": ["none", "full"],
            "overlap.bucket_mb": [1.0, 25.0],
        },
    }
    return parse(tree)


def tuned(home: Path, file: StudyFile) -> str:
    """Search and train on; the run's name."""
    folder, windows = home / STUDIES / file.name, windows_of(home, file)
    run_to_the_end(
        windows, file, lambda: run_study(file, folder, windows), lambda: nullcontext(lambda: False)
    )
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
    return costs_at(folder, sorted({row.step for row in runs.load(folder).changes}))


def costs_at(folder: Path, places: list[int]) -> list[float]:
    """The same of any steps."""
    records = RunRecords(folder / "records")
    steps = join_steps({rank: records.table(rank, "step") for rank in records.ranks()})
    seconds = wall_seconds(steps)
    costs = []
    for place in places:
        after = seconds[place : place + AROUND]
        usual = float(np.median(seconds[place + AROUND : place + 4 * AROUND]))
        if len(after) == AROUND and usual > 0:
            costs.append(float(after.sum()) / usual - AROUND)
    return costs


#: Steps between two turns of the second table.
APART = 24
_SHARDED = {"parallel.zero_stage": 3, "batch.micro_batch": 4}
_ROUNDS = {"outer.method": "streaming", "outer.period": 4, "outer.fragments": 2, "outer.overlap": 1}
#: By knob: the base it is turned over, and its two values.
KNOBS: dict[str, tuple[dict[str, Any], tuple[Any, Any]]] = {
    "overlap.bucket_mb": ({}, (25.0, 1.0)),
    "batch.micro_batch": ({}, (4, 2)),
    "memory.recompute": ({}, ("none", "selective")),
    "memory.offload": ({}, ("none", "activations")),
    "compression.method": ({}, ("none", "int8")),
    "parallel.zero_stage": (_SHARDED, (3, 2)),
    "parallel.reduce_every_micro_batch": (_SHARDED, (False, True)),
    "overlap.gather_with_optimizer": ({"parallel.zero_stage": 1}, (False, True)),
    "outer.overlap": (_ROUNDS, (1, 0)),
    "outer.learning_rate": (_ROUNDS, (0.4, 0.5)),
}


def turning(turns: int, key: str | None) -> list[float]:
    """What ``turns`` of one knob cost, in steps; of None what the steps at the same places cost of themselves."""
    base, values = KNOBS[key] if key else ({}, (None, None))
    config = study(240).config.with_values(
        {"parallel.dp": 2, "train.steps": APART * (turns + 1), "train.validation_batches": 0} | base
    )
    places = [APART * (number + 1) for number in range(turns)]
    with tempfile.TemporaryDirectory() as name, Session(Path(name)) as session:
        begun: list[Path] = []
        asking = Asking(begun, key, values, places)
        session.execute(config, {}, asking, begun.append)
        return turn_costs(begun[0]) if key else costs_at(begun[0], places)


class Asking:
    """Asked several times a second whether the run should stop, it asks for the next turn when its time has come."""

    def __init__(
        self, begun: list[Path], key: str | None, values: tuple[Any, Any], places: list[int]
    ) -> None:
        self._begun, self._key, self._values, self._places = begun, key, values, list(places)
        self._turned = 0

    def __call__(self) -> bool:
        if self._key is not None and self._begun and self._places:
            step = min((rank.step for rank in progress.read(self._begun[0])), default=-1)
            if step >= self._places[0] - 4:
                self._places.pop(0)
                self._turned += 1
                commands.send(self._begun[0], "set", {self._key: self._values[self._turned % 2]}, "benchmark")
        return False


def main() -> None:
    """Print the tables."""
    parser = table.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--turns", type=int, default=12)
    asked = parser.parse_args()
    if asked.turns:
        by_knob(asked.turns, asked.save)
    if asked.rounds:
        whole_runs(asked.rounds, asked.steps, asked.save)


def by_knob(turns: int, save: bool) -> None:
    """Turns of each knob, one run each."""
    rows = []
    for key in (None, *KNOBS):
        costs = turning(turns, key)
        middle, worst = statistics.median(costs), max(costs)
        values = " and ".join(map(str, KNOBS[key][1])) if key else ""
        rows.append([key or "nobody turns (A/A)", values, str(len(costs)), f"{middle:.2f}", f"{worst:.2f}"])
    header = ("knob", "between", "turns", "steps lost, median", "most")
    title = f"Turns of one knob: the {AROUND} steps from a turn on beyond three usual ones, in steps"
    table.show("live_turns", title, header, rows, save)


def whole_runs(rounds: int, steps: int, save: bool) -> None:
    """A run that is tuned beside ones that are left alone."""
    ratios: dict[str, list[float]] = {"tuned": [], "left alone again (A/A)": []}
    costs: list[float] = []
    for number in range(rounds):
        seconds: dict[str, float] = {}
        order = ["left alone", *ratios]
        for arm in order if number % 2 == 0 else order[::-1]:
            with tempfile.TemporaryDirectory() as name, HomeWatch(Path(name)) as watched:
                file = study(steps)
                run = tuned(Path(name), file) if arm == "tuned" else alone(Path(name), file)
                costs += turn_costs(Path(name) / run)
                seconds[arm] = watched.runs[run].seconds(2, steps)
        print({arm: round(one, 1) for arm, one in seconds.items()}, file=sys.stderr)
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
    table.show("live", f"A run of {steps} steps that is at its best already", header, rows, save)


if __name__ == "__main__":
    main()
