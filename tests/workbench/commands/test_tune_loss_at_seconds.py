"""Studies of the loss after a time: what changes learning is turned, and who learned most in that time wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.workbench.conftest import Run

SECONDS = 3.0
STUDY: dict[str, Any] = {
    "name": "cramming",
    "ranks": 2,
    "objective": {"loss_at_seconds": SECONDS},
    "trials": 4,
    "confirm_repeats": 0,
    "sampler": "random",
    "base": {
        "model": {"layers": 2},
        "data": {"sequence_length": 32},
        "batch": {"global_batch": 8, "micro_batch": 2},
        "train": {"validation_batches": 2, "learning_rate_schedule": "one_cycle", "learning_rate": 1e-7},
        "device": "cpu",
    },
    "space": {"train.learning_rate": [1e-7, 3e-3], "batch.global_batch": [8, 16]},
}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY))
    return path


@pytest.mark.timeout(180)
def test_who_learned_most_in_the_time_wins(command: Run, study: Path, home: Path) -> None:
    found = command("tune", study, "--json").document
    assert (found["state"], found["objective"]) == ("ended", "loss_at_seconds")
    assert found["best"]["config"]["train.learning_rate"] == 3e-3
    by_rate: dict[float, list[float]] = {}
    for row in found["trials"]:
        summary = json.loads((home / row["run"] / "summary.json").read_text())
        told = row["measures"]["loss_at_seconds"]["value"]
        assert told == pytest.approx(summary["validation_loss"])
        assert summary["budget_seconds"] == SECONDS
        assert 0.5 * SECONDS < summary["budget_used_seconds"] < 2 * SECONDS, "busy machines are late"
        assert len(summary["losses"]) != 24, "its time ends a trial, not its steps"
        by_rate.setdefault(row["config"].get("train.learning_rate", 1e-7), []).append(told)
    assert max(by_rate[3e-3]) < min(by_rate[1e-7])
    text = command("show", "cramming").out
    assert "loss" in text
    shown = command("show", found["best"]["run"]).out
    assert "s of 3.00 s, the last loss and checkpoint" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("objective=loss_at_seconds", "needs the seconds of each trial"),
        ("base.train.validation_batches=0", "there is no held-out text to take a loss on"),
        ("base.train.timeout_seconds=2", "ends the run before; raise that"),
        ("objective={loss_at_seconds: -1}", "must be a number above 0"),
        ("objective={loss_at_seconds: soon}", "objective.loss_at_seconds='soon'"),
        ("objective={time_to_loss: low}", "objective.time_to_loss='low'"),
        ("target_loss=3.0", "needs objective: {time_to_loss: ..}"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(
    command: Run, study: Path, home: Path, setting: str, words: str
) -> None:
    command("tune", study, "--set", setting).refused(words)
    assert not (home / "studies").exists()
