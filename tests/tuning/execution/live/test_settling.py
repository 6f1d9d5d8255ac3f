"""Steps that settle after a turn are found by their own times, and are no part of what a window measures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from engine.run import run_folder
from engine.run.outcome import Ending
from profilers.records.writer import RecordWriter
from tests.support.samples import step_sample
from tests.tuning.execution.live.test_foreign import Tuning, study
from tests.tuning.execution.live.test_live_study import live_study
from tuning.execution.live.ongoing_run import OngoingRun

#: A trainer that tells of steps of 0.5 s, the first three of them after a turn to 2 take three times as long.
TRAINER = """
import json, os, sys, time
from pathlib import Path
place = Path(os.environ["WORKBENCH_FOLDER"])
number, value, since = 0, 1, 0
with (place / "trainer.jsonl").open("w", buffering=1) as told:
    def tell(**line):
        told.write(json.dumps(line) + "\\n")
    tell(event="begin", values={"accumulation": value}, ranks=1)
    for step in range(100_000):
        wanted = json.loads((place / "values.json").read_text())
        if wanted["number"] > number:
            number, value, since = wanted["number"], wanted["values"]["accumulation"], step
            tell(event="turned", number=number, step=step, values=wanted["values"])
        time.sleep(0.01)
        late = value == 2 and step < since + 3
        tell(event="step", step=step, seconds=1.5 if late else 0.5, tokens=None, loss=None)
"""


@pytest.mark.timeout(120)
def test_a_window_leaves_out_what_settles_and_nothing_else(tmp_path: Path) -> None:
    """The study asks for two steps of warm-up; one turn needs three, the other one none."""
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER, "utf-8")
    base = {"batch": {"global_batch": 8}, "data": {"sequence_length": 8}, "train": {"steps": 12, "warmup": 2}}
    base |= {"trainer": {"accumulation": 1}}
    command = {"trainer": {"command": f"{sys.executable} {script}"}}
    live = {"steps": 100_000, "max_slowdown": 100.0, "look_again": None} | command
    tuning = Tuning(tmp_path / "home", study(base=base, live=live, space={"trainer.accumulation": [1, 2, 4]}))
    try:
        found = {}
        for trial, value in enumerate((1, 2, 4)):
            folders: list[Path] = []
            labels = {"study": "foreign", "trial": str(trial), "purpose": "confirm"}
            config = tuning.file.config.with_values({"trainer.accumulation": value})
            outcome, summary = tuning.windows(config, labels, lambda: False, folders.append)
            assert outcome.ending is Ending.COMPLETED
            covered = (run_folder.read_json(folders[0] / run_folder.STATUS) or {})["window"]
            found[value] = summary, covered
        late, usual = found[2], found[4]
        assert late[1]["settling"] == late[0].warmup_steps == 3
        assert usual[1]["settling"] == usual[0].warmup_steps == 0
        for summary, covered in (late, usual):
            assert summary.tokens_per_second == pytest.approx(64 / 0.5)
            assert summary.measured_from_step == covered["first"] + covered["settling"]
        assert usual[0].measured_steps >= 10
    finally:
        tuning.windows.leave(tuning.file.config, "foreign")
        tuning.starter.stop()


def ongoing(home: Path, seconds: list[float], unmeasured: int, **values: Any) -> OngoingRun:
    """A run of two ranks with these steps; ranks left out so many at the start."""
    config = live_study().config.with_values({"parallel.dp": 2} | values)
    folder = run_folder.create(home, config, {})
    run_folder.update_status(folder, backend="gloo", world_size=2)
    for rank in range(2):
        writer = RecordWriter(folder / run_folder.RECORDS, f"rank-{rank}")
        for step, took in enumerate(seconds):
            writer.write(
                step_sample(
                    step,
                    measured=step >= unmeasured,
                    start_unix=float(step),
                    step_seconds=took,
                    between_seconds=0.0,
                )
            )
        writer.close()
    run = OngoingRun(folder)
    run.refresh()
    return run


@pytest.mark.parametrize(
    ("seconds", "unmeasured", "left_out"),
    [
        ([3.0, 2.0, 1.0, 1.01, 0.99, 1.0, 1.0, 1.01], 1, 2),
        ([1.0, 1.01, 1.0, 0.99, 1.0, 1.01, 1.0, 1.0], 2, 0),
        ([3.0, 1.0, 1.0, 1.0, 1.0], 2, 2),  # too few to tell: what ranks left out
        ([3.0, 2.0, 1.0, 1.01, 0.99, 1.0, 1.0, 1.01], 0, 0),  # nothing was turned
        ([1.0, 1.0, 5.0, 1.0, 1.0, 1.01, 0.99, 1.0], 1, 0),  # a hiccup is no settling
    ],
)
def test_how_many_steps_are_left_out(
    tmp_path: Path, seconds: list[float], unmeasured: int, left_out: int
) -> None:
    run = ongoing(tmp_path, seconds, unmeasured)
    stretch = run.steps_since(0)
    assert (stretch.settling, stretch.measured_steps, stretch.steps) == (
        left_out,
        len(seconds) - left_out,
        len(seconds),
    )
    assert run.step_seconds(0) == pytest.approx(seconds[left_out:])
    summary = run.summary(0)
    assert summary.step_samples == pytest.approx(seconds[left_out:])
    assert summary.warmup_steps == left_out


def test_a_compiled_step_and_rounds_of_an_outer_loop_are_left_out_as_ranks_say(tmp_path: Path) -> None:
    steady = [1.0] * 10
    assert ongoing(tmp_path, steady, 2, compile=True).steps_since(0).settling == 1
    outer = {"outer.method": "diloco", "outer.period": 2}
    assert ongoing(tmp_path, steady, 4, **outer).steps_since(0).settling == 4
