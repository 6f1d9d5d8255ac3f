"""Trials on a model of a cluster: endings, summaries, and the run folders that they leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.run_config import RunConfig, parse
from engine.run.outcome import Ending
from tests.support.studies.fake import run_study, study
from tuning.execution.simulated_machine import Simulation
from tuning.predict.forecast import forecast
from tuning.predict.target import parse_target


def config(**parallel: Any) -> RunConfig:
    return parse(
        {
            "model": {"preset": "22b"},
            "data": {"sequence_length": 2048},
            "batch": {"global_batch": 64, "micro_batch": 1},
            "parallel": parallel,
            "precision": "bf16",
            "memory": {"recompute": "full"},
            "train": {"steps": 12, "warmup": 2},
        }
    )


def run(home: Path, asked: RunConfig, noise: float = 0.0) -> Any:
    return Simulation(home, "frontier", noise)(asked, {"study": "s"}, lambda: False)


def test_a_step_is_what_is_predicted_and_its_phases_sum_to_it(tmp_path: Path) -> None:
    asked = config(dp=2, tp=4, pp=2)
    outcome, summary = run(tmp_path, asked)
    found = forecast(asked, parse_target("frontier", 2, 16))
    assert outcome.ending is Ending.COMPLETED
    assert summary.backend == "simulated"
    assert summary.step_seconds.median == pytest.approx(found.step_seconds.median)
    assert sum(summary.phases.values()) == pytest.approx(summary.step_seconds.median)
    assert summary.mfu == pytest.approx(found.mfu, rel=1e-6)
    assert summary.peak_memory_bytes == round(found.memory_bytes.median)
    assert any("no rank ran" in note for note in summary.notes)
    assert (tmp_path / summary.id / "summary.json").exists()


def test_steps_and_runs_stray(tmp_path: Path) -> None:
    asked = config(dp=2, tp=4, pp=2)
    found = [run(tmp_path, asked, noise=0.02)[1] for _ in range(4)]
    assert len({one.step_seconds.median for one in found}) == 4
    for one in found:
        assert len(one.step_samples) == 10
        assert max(one.step_samples) / min(one.step_samples) < 1.2


def test_what_does_not_fit_ends_as_that(tmp_path: Path) -> None:
    outcome, summary = run(tmp_path, config(dp=16))
    assert outcome.ending is Ending.OOM
    assert "GiB of 64 GiB" in outcome.reason
    assert summary.step_seconds is None


def test_what_breaks_a_rule_is_illegal(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path, config(dp=3, tp=5))
    assert outcome.ending is Ending.ILLEGAL


def test_a_study_on_a_model_of_a_cluster(tmp_path: Path) -> None:
    file = study(
        name="big",
        ranks=16,
        trials=10,
        simulate={"cluster": "frontier", "noise": 0.0},
        base=config(dp=1).model_dump(mode="json", exclude={"parallel"}),
        space={
            "ranks": [16, 32],
            "parallel.tp": [1, 2, 4, 8],
            "parallel.pp": [1, 2, 4],
            "batch.micro_batch": [1, 2],
        },
    )
    document = run_study(file, tmp_path / "studies" / "big", Simulation(tmp_path, "frontier"))
    endings = {row["outcome"] for row in document["trials"]}
    assert ", simulated on a model of " in document["result_line"]
    assert document["best"] and endings == {"completed", "oom"}
