"""The ready studies of published workloads, cut short: the baseline runs, every trial does, and a gain is told."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from engine.config.validation import rules
from tests.workbench.conftest import Run
from workbench.home.inputs import study_file

STUDIES = Path(__file__).parents[3] / "examples" / "workload"
NAMES = ["convolutions", "driving", "partitioned", "saddle", "sparse_update"]
#: So little of each that even a busy machine is through it soon; driving's held-out episodes alone take longer.
SHORT: dict[str, list[str]] = {
    "convolutions": ["base.train.steps=4", "base.model.options={form: folded, width: 4, layers: 2}"],
    "partitioned": ["objective={loss_at_seconds: 4}", "base.model.options.apart=10"],
    "saddle": ["objective={loss_at_seconds: 4}"],
    "sparse_update": [
        "objective={loss_at_seconds: 6}",
        "base.model.options={update: last, budget_kib: 256, start: 2, probe: 1}",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_baseline_keeps_what_is_known_of_a_workload_once_it_was_looked_at(name: str) -> None:
    if name == "driving" and importlib.util.find_spec("highway_env") is None:
        pytest.skip("highway-env is not installed")
    file = study_file(STUDIES / f"{name}.yaml", [], None, None)
    space = file.search_space
    point, note = space.baseline
    rules.check(space.config(point))
    assert bool(note) is (name == "partitioned"), "its halves are on a pipeline"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", SHORT)
def test_a_ready_study_has_a_gain_to_tell(name: str, command: Run) -> None:
    sets = [argument for one in [*SHORT[name], "confirm_repeats=2"] for argument in ("--set", one)]
    found = command("tune", STUDIES / f"{name}.yaml", "--trials", 2, *sets, "--json").document
    assert (found["study"], found["state"]) == (name, "ended")
    assert {row["outcome"] for row in found["trials"]} == {"completed"}
    assert found["baseline"] is not None and found["gain"] is not None
