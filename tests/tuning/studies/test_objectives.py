"""Whole studies on a made-up machine: several objectives, other ones than speed, constraints, and budgets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
import pytest

from engine.run import run_folder
from tests.support.studies.fake import Machine, run_study
from tests.support.studies.weighed import GIB, Weighed, asked
from tuning.sampling import optuna_export
from tuning.storage import study_folder

SEVERAL = ["tokens_per_second", "peak_memory_bytes"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "studies" / "first"


def value(row: dict[str, Any], name: str) -> float:
    return float(row["measures"][name]["value"])


def test_several_objectives_end_in_a_front(folder: Path) -> None:
    found = run_study(asked(objective=SEVERAL), folder, Weighed())
    points = {(value(row, SEVERAL[0]), -value(row, SEVERAL[1])) for row in found["trials"]}
    best = {
        one for one in points if not any(a >= one[0] and b >= one[1] and (a, b) != one for a, b in points)
    }
    front = [tuple(point["objectives"][name]["value"] for name in SEVERAL) for point in found["pareto"]]
    assert {(speed, -memory) for speed, memory in front} == best
    assert len(front) > 1 and front == sorted(front, reverse=True)
    assert [point["trial"] for point in found["pareto"] if point["decides"]] == [found["best"]["trial"]]
    assert found["best"]["trial"] == found["pareto"][0]["trial"]
    assert found["pareto"][0]["objectives"]["tokens_per_second"]["low"] < front[0][0]
    assert found["pareto"][0]["objectives"]["peak_memory_bytes"]["low"] is None
    assert (
        f"one of {len(front)} on the front of tokens_per_second and peak_memory_bytes" in found["result_line"]
    )
    assert (found["objective"], found["objectives"]) == ("tokens_per_second", SEVERAL)
    assert run_folder.read_json(folder / "result.json") == json.loads(json.dumps(found))


def test_what_is_preferred_decides_and_is_confirmed(folder: Path) -> None:
    found = run_study(asked(objective=SEVERAL, prefer=SEVERAL[1], trials=6), folder, Weighed())
    assert value(found["best"], SEVERAL[1]) == min(value(row, SEVERAL[1]) for row in found["trials"])
    assert found["best"]["trial"] == found["pareto"][-1]["trial"]
    assert {row["confirms"] for row in found["confirmations"]} == {0, found["best"]["trial"]}
    assert (found["gain"]["verdict"], found["gain"]["confirmed"]) == ("better", True)
    shown = found["best"]["shown"]
    assert shown["unit"] == "GiB" and shown["value"] == pytest.approx(value(found["best"], SEVERAL[1]) / GIB)


def test_optuna_knows_all_of_them_in_their_own_units(folder: Path) -> None:
    found = run_study(asked(objective=SEVERAL, trials=5), folder, Weighed())
    assert optuna_export.rebuild(folder) == ""
    storage = f"sqlite:///{folder / study_folder.DATABASE}"
    kept = optuna.load_study(study_name="first", storage=storage)
    assert [direction.name for direction in kept.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert [trial.values for trial in kept.trials] == [
        [value(row, name) for name in SEVERAL] for row in found["trials"]
    ]
    assert {trial.user_attrs["number"] for trial in kept.best_trials} >= {
        row["trial"] for row in found["pareto"]
    }


def test_the_sampler_learns_from_several_objectives_and_failures(folder: Path) -> None:
    """Started again it goes on; what ran out of memory has no value, and is no point of a front."""
    from engine.run.outcome import Ending, RunOutcome

    oom = RunOutcome(Ending.OOM, "too large")
    machine = Weighed(by_config=lambda config: oom if config.batch.micro_batch == 4 else None)
    run_study(asked(objective=SEVERAL, trials=5), folder, machine)
    found = run_study(asked(objective=SEVERAL, trials=8), folder, machine)
    assert found["trials_done"] == 8
    failed = [row["number"] for row in found["trials"] if row["outcome"] == "oom"]
    assert failed and not set(failed) & {point["trial"] for point in found["pareto"]}


@pytest.mark.parametrize("objective", ["step_seconds", "money_per_billion_tokens"])
def test_what_the_time_of_a_step_decides_has_the_winner_of_speed(folder: Path, objective: str) -> None:
    price = {"per_gpu_hour": 3.0}
    found = run_study(asked(objective=objective, price=price, trials=4), folder, Weighed())
    fastest = max(found["trials"], key=lambda row: value(row, "tokens_per_second"))
    assert found["best"]["trial"] == fastest["number"]
    shown = found["best"]["shown"]
    assert shown["low"] < shown["value"] < shown["high"]
    hours = 1e9 / value(fastest, "tokens_per_second") / 3600
    assert value(fastest, "money_per_billion_tokens") == pytest.approx(hours * 4 * 3.0)
    better = "faster" if objective == "step_seconds" else "cheaper"
    assert f"% {better} than plain data parallel, 95 % interval" in found["result_line"]


def test_without_repetition_a_single_value_is_undecided(folder: Path) -> None:
    found = run_study(asked(objective="peak_memory_bytes", confirm_repeats=0), folder, Weighed())
    assert (found["gain"]["verdict"], found["gain"]["low"]) == ("undecided", None)
    assert "a run gives one value and no interval" in found["result_line"]


def test_a_single_value_that_was_measured_again_is_not_told_to_be_measured_again(folder: Path) -> None:
    found = run_study(asked(objective="peak_memory_bytes", confirm_repeats=2), folder, Weighed())
    assert found["gain"]["confirmed"] and found["gain"]["low"] is None, "two rounds have no interval"
    assert "a run gives one value and no interval" not in found["result_line"]
    assert "from too few rounds" in found["result_line"]


def test_what_breaks_a_constraint_is_never_the_best(folder: Path) -> None:
    """All 18 points are tried, and the only one that keeps so much free is a slow one."""
    whole = {"limit_gib": 2.2, "trials": 18}
    free = run_study(asked(**whole), folder.with_name("free"), Weighed())
    found = run_study(asked(**whole, constraints={"memory_headroom": 0.9}), folder, Weighed())
    broken = [row for row in found["trials"] if row["limits"][0]["state"] == "violated"]
    assert free["best"]["trial"] is not None
    assert (
        value(free["best"], "peak_memory_bytes")
        > 0.1 * 2.2 * GIB
        >= value(found["best"], "peak_memory_bytes")
    )
    kept = [row for row in found["trials"] if row not in broken]
    assert found["best"]["trial"] == max(kept, key=lambda row: row["value"])["number"]
    for row in broken:
        missed = 0.9 - (1 - value(row, "peak_memory_bytes") / (2.2 * GIB))
        assert row["constraints"]["memory_headroom"] == pytest.approx(missed)
        assert row["limits"][0]["violation"] == pytest.approx(missed)
        assert "at least 90 % asked for: missed by" in row["reason"]
    assert "faster but ruled out: " in found["result_line"]
    assert found["baseline"]["trial"] in [row["number"] for row in broken]
    assert "is ruled out (free memory at the peak" in found["result_line"]
    assert found["recommended"]["trial"] == found["best"]["trial"], (
        "the baseline is not kept, however simple it is"
    )


def test_what_cannot_be_told_is_no_permission(folder: Path) -> None:
    constraints = {"joules_per_token": 0.5}
    found = run_study(asked(constraints=constraints, trials=4), folder, Weighed())
    assert found["best"] is None
    for row in found["trials"]:
        assert row["limits"][0]["state"] == "undecided"
        assert row["constraints"] == {"joules_per_token_undecided": 0.001}
        assert "was not measured (no rank computes on a GPU)" in row["reason"]
    assert found["result_line"].startswith(
        "none of 4 measured configurations meets every constraint; the nearest, "
    )
    told = run_study(asked(constraints=constraints, trials=4), folder.with_name("told"), Weighed(joules=0.4))
    assert told["best"] is not None and told["best"]["measures"]["joules_per_token"][
        "value"
    ] == pytest.approx(0.4)


def test_an_objective_that_a_run_did_not_tell_leaves_no_value(folder: Path) -> None:
    found = run_study(asked(objective="joules_per_token", trials=2), folder, Weighed())
    assert found["best"] is None
    assert {row["reason"] for row in found["trials"]} == {
        "joules_per_token was not measured: no rank computes on a GPU"
    }


def test_a_lossy_setting_must_keep_the_constraints_too(folder: Path) -> None:
    space = {"compression.method": ["none", "topk"], "batch.micro_batch": [2, 4]}
    more: dict[str, Any] = {"space": space, "quality": {"max_loss_increase": 0.5}, "trials": 4}
    assert (
        run_study(asked(**more), folder.with_name("free"), Weighed())["best"]["config"]["batch.micro_batch"]
        == 4
    )
    found = run_study(asked(**more, constraints={"peak_memory_bytes": 2.5 * GIB}), folder, Weighed())
    assert found["best"]["config"]["compression.method"] == "topk"
    assert found["best"]["config"]["batch.micro_batch"] == 2


def test_money_ends_a_study_and_may_grow(folder: Path) -> None:
    machine = Machine(run_seconds=0.02)
    price = {"per_gpu_hour": 3600.0, "currency": "EUR"}  # four ranks: 4 EUR a second
    found = run_study(asked(price=price, budget={"money": 0.8}), folder, machine)
    assert found["trials_done"] < 9
    assert found["budget"]["stopped_by"] == "money"
    assert found["confirmations"] and found["budget"]["money"]["used"] > 0
    assert run_folder.read_json(folder / "status.json")["budget"] == found["budget"]  # type: ignore[index]
    more = run_study(asked(price=price, budget={"money": 80.0}), folder, machine)
    assert (more["trials_done"], more["budget"]["stopped_by"]) == (9, "trials")
