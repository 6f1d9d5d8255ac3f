"""The ready study of a masked language model in a fixed time, at a small budget, from its file to its winner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.workbench.conftest import Run

STUDY = Path(__file__).parents[3] / "examples" / "cramming.yaml"
SECONDS = 6.0
#: A model and batches that even a busy machine trains some steps of.
SMALL = [
    f"objective={{loss_at_seconds: {SECONDS}}}",
    "base.model.options={sequence_length: 16, width: 16, heads: 2, layers: 2, share: 0.25}",
    "base.batch={global_batch: 8, micro_batch: 2, ramp_from: 2, ramp_share: 0.6}",
    "space={batch.micro_batch: [1, 2], batch.global_batch: [4, 8], train.learning_rate: [0.0003, 0.003]}",
    "confirm_repeats=0",
]


@pytest.mark.timeout(240)
def test_the_study_of_cramming_finds_who_learned_most(command: Run, home: Path) -> None:
    sets = [argument for setting in SMALL for argument in ("--set", setting)]
    found = command("tune", STUDY, "--trials", 3, *sets, "--json").document
    assert (found["study"], found["state"], found["objective"]) == ("cramming", "ended", "loss_at_seconds")
    assert [row["outcome"] for row in found["trials"]] == ["completed"] * 3
    told = {row["run"]: row["measures"]["loss_at_seconds"] for row in found["trials"]}
    losses = {run: one["value"] for run, one in told.items() if one["value"] is not None}
    # Of a run that a busy machine kept well beyond its time there is no loss at that time, and it is said why.
    assert all("instead of" in one["reason"] for run, one in told.items() if run not in losses)
    assert losses and losses[found["best"]["run"]] == min(losses.values())
    for row in found["trials"]:
        summary = json.loads((home / row["run"] / "summary.json").read_text())
        assert summary["workload"] == "masked_text"
        assert summary["shared_parameters"] == 257 * 16, "a head that is the embedding"
        config = json.loads((home / row["run"] / "config.json").read_text())
        assert config["train"]["seconds"] == SECONDS
        batches = [change["new"] for change in summary["changes"]]
        # On a busy machine there are few steps, of which some batches have none.
        assert set(batches) <= set(range(4, config["batch"]["global_batch"] + 1, 2)) and batches == sorted(
            batches
        )
        assert summary["tokens_per_step"] == 16 * (batches or [2])[-1]
        shown = " ".join(command("show", row["run"]).out.split())
        assert "fewer by sharing" in shown
        assert not batches or f"batch.global_batch 2 → {batches[0]} (batch.ramp_from)" in shown
