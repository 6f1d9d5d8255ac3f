"""A study with several objectives from the command line, on two real ranks; and what is refused before it begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.workbench.conftest import Run

STUDY: dict[str, Any] = {
    "name": "tradeoff",
    "ranks": 2,
    "objective": ["tokens_per_second", "peak_memory_bytes"],
    "prefer": "peak_memory_bytes",
    "price": {"per_gpu_hour": 1.5, "currency": "EUR"},
    "constraints": {"memory_headroom": 0.01, "max_step_seconds": 60},
    "budget": {"trials": 2, "gpu_hours": 1, "money": 5},
    "confirm_repeats": 0,
    "base": {
        "model": {"layers": 2},
        "data": {"sequence_length": 32},
        "batch": {"global_batch": 8, "micro_batch": 2},
        "train": {"steps": 8, "warmup": 2},
        "device": "cpu",
    },
    "space": {"batch.micro_batch": [1, 2]},
}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY))
    return path


def test_a_study_of_speed_and_memory_on_real_ranks(
    command: Run, study: Path, home: Path, tmp_path: Path
) -> None:
    found = command("tune", study, "--json").document
    assert (found["state"], found["trials_done"], found["budget"]["stopped_by"]) == ("ended", 2, "trials")
    for row in found["trials"]:
        measures = row["measures"]
        assert measures["peak_memory_bytes"]["value"] > 50e6, "processes of their own"
        assert 0.01 < measures["memory_headroom"]["value"] < 1
        speed = measures["tokens_per_second"]
        assert speed["low"] <= speed["value"] <= speed["high"]
        assert measures["money_per_billion_tokens"]["value"] == pytest.approx(
            3.0 / 3600 / speed["value"] * 1e9
        )
        assert measures["joules_per_token"] == {
            "value": None, "low": None, "high": None, "reason": measures["joules_per_token"]["reason"]
        }  # fmt: skip
        assert measures["joules_per_token"]["reason"]
        assert [limit["state"] for limit in row["limits"]] == ["satisfied", "satisfied"]
    pids = [
        json.loads((home / row["run"] / "status.json").read_text())["rank_pids"] for row in found["trials"]
    ]
    assert len({pid for each in pids for pid in each}) == 4, "memory of warm ranks would grow from run to run"
    text = command("show", "tradeoff").out
    assert "2 of 2 trials; " in text and " of 1 GPU-hours; " in text and " of 5 EUR; " in text
    assert "constraints of the best: free memory at the peak" in text and " GiB" in text
    command("export", "tradeoff", "--to", "torchrun", "--out", tmp_path / "out")
    assert "Objective of its study: `peak_memory_bytes`" in (tmp_path / "out" / "README.md").read_text()
    said = json.loads((tmp_path / "out" / "provenance.json").read_text())["study_result"]
    assert (said["objective"], said["pareto"]) == ("peak_memory_bytes", found["pareto"])


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "objective=[tokens_per_second,joules_per_token] prefer=joules_per_token",
            "joules are not measured on this",
        ),
        ("objective=[tokens_per_second,mfu] prefer=mfu", "a CPU has no published peak"),
        ("constraints.joules_per_token=1", "joules are not measured on this machine"),
        ("price=null", "needs a price"),
        ("trials=5", "budget.trials=2: trials is 5; keep one of them"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(
    command: Run, study: Path, home: Path, setting: str, words: str
) -> None:
    command("tune", study, "--set", *setting.split()).refused(words)
    assert not (home / "studies").exists()
