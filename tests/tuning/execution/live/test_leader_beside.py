"""A machine that becomes slower in the middle of a live search: the leader's steps beside a window show it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from engine.run.outcome import Ending, RunOutcome
from profilers.model.run_summary import RunSummary
from tests.support.waiting import wait_until
from tests.tuning.execution.live.test_foreign import Tuning, study
from tuning.analysis import scoring
from tuning.execution.executor import Ran
from tuning.execution.live.windows import LiveWindows
from tuning.spec.objectives import Aim

#: A trainer that tells of steps of 1 s, 0.5 s, 0.4 s or 1 s, by its value; all take twice as long once there is a file.
TRAINER = """
import json, os, sys, time
from pathlib import Path
place, slow = Path(os.environ["WORKBENCH_FOLDER"]), Path(sys.argv[1])
number, value = 0, 1
with (place / "trainer.jsonl").open("w", buffering=1) as told:
    def tell(**line):
        told.write(json.dumps(line) + "\\n")
    tell(event="begin", values={"accumulation": value}, ranks=1)
    for step in range(100_000):
        wanted = json.loads((place / "values.json").read_text())
        if wanted["number"] > number:
            number, value = wanted["number"], wanted["values"]["accumulation"]
            tell(event="turned", number=number, step=step, values=wanted["values"])
        time.sleep(0.01)
        seconds = {1: 1.0, 2: 0.5, 4: 0.4, 8: 1.0}[value] * (1 + slow.exists())
        tell(event="step", step=step, seconds=seconds, tokens=None, loss=None)
"""
#: More steps than the trainer has.
ENDLESS = 1_000_000


@pytest.mark.timeout(120)
def test_windows_are_judged_beside_the_leader_as_it_is_then(tmp_path: Path) -> None:
    script, slow = tmp_path / "trainer.py", tmp_path / "slow"
    script.write_text(TRAINER, "utf-8")
    base = {"batch": {"global_batch": 8}, "data": {"sequence_length": 8}, "train": {"steps": 8, "warmup": 2}}
    base |= {"trainer": {"accumulation": 1}}
    command = {"trainer": {"command": f"{sys.executable} {script} {slow}"}}
    live = {"steps": 100_000, "max_slowdown": 100.0, "look_again": None} | command
    tuning = Tuning(
        tmp_path / "home", study(base=base, live=live, space={"trainer.accumulation": [1, 2, 4, 8]})
    )
    windows = LiveWindows(tuning.home, tuning.starter, tuning.windows._slowdown, races=True)

    def window(trial: int, value: int, purpose: str = "sampler", steps: int = 8) -> Ran:
        """Of so many steps at the most: one that is to be given up has no end."""
        labels = {"study": "foreign", "trial": str(trial), "purpose": purpose}
        values = {"trainer.accumulation": value, "train.steps": steps}
        return windows(tuning.file.config.with_values(values), labels, lambda: False)

    try:
        _, first = window(0, 1, "baseline")
        _, leader = window(1, 2)
        assert (first.leader_level, leader.leader_level) == (None, 1.0)
        assert (first.leader_ratio, leader.leader_ratio) == (None, pytest.approx(2.0))
        slow.touch()
        run = tuning.starter.current
        assert run is not None
        later = run.step + 3
        assert wait_until(lambda: run.step > later, 60)
        outcome, better = window(2, 4)
        assert outcome.ending is Ending.COMPLETED, (
            "0.8 s are no reason to give it up: the leader takes 1 s now"
        )
        assert better.leader_level == pytest.approx(2.0)
        assert tuning.windows._slowdown.level == pytest.approx(2.0), "nor is it a loss of the search"
        assert better.tokens_per_second == pytest.approx(64 / 0.8), "what was measured is told as it was"
        outcome, worse = window(3, 8, steps=ENDLESS)
        assert outcome.ending is Ending.PRUNED and "80 of the leader, as the machine is now" in outcome.reason
        assert worse.leader_level == pytest.approx(2.0)
        assert worse.leader_ratio == pytest.approx(0.8 / 2.0)
        changed = [row.new for row in run.summary(0).changes]
        assert changed == [2, 4, 8, 4], (
            "the leader is in place before each, and again after one that it beats"
        )
        _, again = window(4, 2, steps=ENDLESS)
        changed = [row.new for row in run.summary(0).changes]
        assert changed == [2, 4, 8, 4, 2, 4], "its steps after one window are those before the next"
        assert again.leader_ratio == pytest.approx(0.8)
    finally:
        windows.leave(tuning.file.config, "foreign")
        tuning.starter.stop()


@pytest.mark.timeout(120)
def test_what_was_given_up_counts_where_the_leader_is_as_slow_afterwards(tmp_path: Path) -> None:
    """The machine becomes slow as the window begins: 0.8 s against the 0.5 s before, and against 1 s after it."""
    script, slow = tmp_path / "trainer.py", tmp_path / "slow"
    told = 'tell(event="turned"'
    script.write_text(TRAINER.replace(told, f"value == 4 and slow.touch()\n            {told}"), "utf-8")
    base = {"batch": {"global_batch": 8}, "data": {"sequence_length": 8}, "train": {"steps": 8, "warmup": 2}}
    base |= {"trainer": {"accumulation": 1}}
    command = {"trainer": {"command": f"{sys.executable} {script} {slow}"}}
    live = {"steps": 100_000, "max_slowdown": 100.0, "look_again": None} | command
    tuning = Tuning(
        tmp_path / "home", study(base=base, live=live, space={"trainer.accumulation": [1, 2, 4, 8]})
    )
    windows = LiveWindows(tuning.home, tuning.starter, tuning.windows._slowdown, races=True)
    usual = tuning.file.config

    try:
        for trial, value in enumerate((1, 2, 4)):
            labels = {"study": "foreign", "trial": str(trial), "purpose": "sampler" if trial else "baseline"}
            values = {"trainer.accumulation": value, "train.steps": ENDLESS if value == 4 else 8}
            config = usual.with_values(values)
            outcome, summary = windows(config, labels, lambda: False)
        assert summary.leader_level == pytest.approx(2**0.5), "as before, and twice as slow"
        assert (outcome.ending, "the leader became" in outcome.reason) == (Ending.COMPLETED, True), outcome
    finally:
        windows.leave(usual, "foreign")
        tuning.starter.stop()


def test_the_interval_of_a_window_has_both_levels_in_it() -> None:
    def told(level: float | None) -> dict[str, Any]:
        tree = {"tokens_per_second": 80.0, "tokens_per_step": 64, "step_samples": [0.79, 0.8, 0.81, 0.8]}
        more = {
            "id": "w",
            "layout": {},
            "world_size": 1,
            "backend": "x",
            "parameters": 1,
            "measured_steps": 4,
        }
        bounds = {"low": 79.0, "high": 81.0}
        summary = RunSummary.from_dict(
            tree | more | {"leader_level": level, "tokens_per_second_interval": bounds}
        )
        return scoring.measure_values(RunOutcome(Ending.COMPLETED), summary, Aim())

    usual, slower, faster = told(1.0), told(2.0), told(0.5)
    assert told(None)["low"] == usual["low"] and usual["value"] == slower["value"] == faster["value"]
    assert (slower["low"], slower["high"]) == (usual["low"], 2 * usual["high"])
    assert (faster["low"], faster["high"]) == (usual["low"] / 2, usual["high"])
    assert slower["leader_level"] == 2.0
