"""The ready study of shuffled islands, at a small budget: it picks order, cut, plan and batch, and says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.engine.lab import needs_lab
from tests.workbench.conftest import Run

STUDY = Path(__file__).parents[3] / "examples" / "shuffled-islands.yaml"
SHUFFLED = [0, 2, 1, 3]
#: Layers, words and seconds that even a busy machine trains some steps of, and stages alone, so that there is a cut.
SMALL = [
    "objective={loss_at_seconds: 5}",
    "base.model={layers: 4, hidden: 32, heads: 2, kv_heads: 2, ffn_hidden: 64, vocabulary: 1024}",
    "base.train.validation_batches=2",
    "base.memory.budget_gib=0.0034",
    "space={parallel.pp: [1, 2], parallel.placement: [auto], schedule.stage_layers: [auto], "
    "batch.global_batch: [16, 32]}",
    "confirm_repeats=0",
]


@needs_lab
@pytest.mark.timeout(300)
def test_the_study_of_shuffled_islands_picks_everything_and_says_why(command: Run, home: Path) -> None:
    sets = [argument for setting in SMALL for argument in ("--set", setting)]
    found = command("tune", STUDY, "--trials", 4, *sets, "--json").document
    assert (found["state"], found["objective"]) == ("ended", "loss_at_seconds")
    assert [row["outcome"] for row in found["trials"]] == ["completed"] * 4
    baseline, *tried = found["trials"]
    plain = json.loads((home / baseline["run"] / "config.json").read_text())
    assert (plain["parallel"]["dp"], plain["parallel"]["placement"]) == (4, SHUFFLED)
    for row in found["trials"]:
        config, summary = (
            json.loads((home / row["run"] / name).read_text()) for name in ("config.json", "summary.json")
        )
        assert config["memory"]["budget_gib"] == 0.0034
        plans = sorted(summary["memory_plans"], key=lambda plan: plan["first"])
        assert row["resolved"]["memory.block_actions"] == [one for plan in plans for one in plan["actions"]]
        assert all(plan["peak_bytes"] <= 0.0034 * 2**30 for plan in plans)
    assert tried[0]["config"]["parallel.placement"] == "auto", "what is worked out is tried first"
    keys = [pick["key"] for pick in found["picks"]]
    assert {"parallel.placement", "memory.block_actions", "batch.global_batch"} <= set(keys)
    shown = " ".join(command("show", "shuffled-islands").out.split())
    for pick in found["picks"]:
        assert f"picked: {' '.join(pick['line'].split())}" in shown
