"""What a study picked, and what speaks for each pick: numbers of formulas, of the plan of a run, and of trials."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.presets import resolve
from engine.run import run_folder
from tests.support.studies.fake import Machine, study
from tuning.report.study_result import StudyResult
from tuning.spec.study_file import StudyFile
from tuning.study import run_study
from workbench.analysis import automatic_choices

SHUFFLED = [0, 2, 1, 3]
PLACEMENT, CUT, ACTIONS = "parallel.placement", "schedule.stage_layers", "memory.block_actions"


@pytest.fixture(scope="module")
def file() -> StudyFile:
    """Everything is measured once."""
    base = {
        "model": {
            "layers": 8,
            "hidden": 96,
            "heads": 4,
            "kv_heads": 4,
            "ffn_hidden": 256,
            "vocabulary": 2048,
        },
        "data": {"sequence_length": 64},
        "parallel": {"placement": SHUFFLED},
        "batch": {"global_batch": 16, "micro_batch": 4},
        "train": {"steps": 24, "warmup": 4},
        "lab": {"hosts": 4, "islands": 2, "rate_mbit": 400.0, "between_mbit": 100.0},
    }
    space = {"parallel.pp": [1, 2], PLACEMENT: [SHUFFLED, "auto"], CUT: [None, "auto"]}
    return study(base=base, space=space, trials=12, confirm_repeats=0)


@pytest.fixture(scope="module")
def result(file: StudyFile, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    """The trial with two stages, both worked out, is the best: taken as such, whatever the machine made of it."""
    found = run_study(file, tmp_path_factory.mktemp("home") / "studies" / "first", Machine())
    wanted = {"parallel.pp": 2, PLACEMENT: "auto", CUT: "auto"}
    (row,) = [row for row in found.trials if wanted.items() <= row.config.items()]
    assert found.best is not None
    best = replace(found.best, trial=row.number, run="best", config=row.config, resolved=row.resolved)
    return replace(found, best=best)


def by_key(result: StudyResult, file: StudyFile, home: Path) -> dict[str, automatic_choices.AutomaticChoice]:
    return {pick.key: pick for pick in automatic_choices.explain_choices(result, file, home)}


def test_an_order_is_picked_by_seconds_of_messages(
    result: StudyResult, file: StudyFile, tmp_path: Path
) -> None:
    pick = by_key(result, file, tmp_path)[PLACEMENT]
    assert (pick.picked, pick.baseline) == ("in order (auto)", "0,2,1,3")
    assert pick.foretold is not None and pick.foretold.unit == "s"
    # The longer stage's pair sums gradients inside an island; activations of both pipelines cross, there and back.
    shape = resolve(file.config.model)
    gradients, activations = (
        4 * (5 * shape.layer_parameters + shape.vocabulary * shape.hidden),
        4 * 4 * 64 * 96,
    )
    fast, slow = (mbit * 1e6 / 8 * 1448 / 1514 for mbit in (400, 100))
    assert pick.foretold.value == pytest.approx(gradients / fast + 2 * 2 * activations / slow, rel=0.03)
    # Shuffled, gradients of both pairs cross, and pipelines stay inside.
    assert pick.foretold.other == pytest.approx(2 * gradients / slow + 2 * activations / fast, rel=0.03)
    assert "with ranks at 0,2,1,3" in automatic_choices.line(pick)


def test_a_cut_is_picked_by_its_longest_stage(result: StudyResult, file: StudyFile, tmp_path: Path) -> None:
    pick = by_key(result, file, tmp_path)[CUT]
    shape = resolve(file.config.model)
    head = shape.vocabulary * shape.hidden / (shape.layer_parameters + 2 * 64 * shape.hidden)
    assert (pick.picked, pick.baseline) == ("5,3 (auto)", "\N{EM DASH}"), (
        "of one stage there is nothing to cut"
    )
    assert pick.foretold is not None
    assert (pick.foretold.value, pick.foretold.other) == pytest.approx((max(5, 3 + head), 4 + head))


def test_what_was_measured_is_of_the_trial_that_differs_least(
    result: StudyResult, file: StudyFile, tmp_path: Path
) -> None:
    assert result.best is not None
    rows = {row.number: row for row in result.trials}
    for key, pick in by_key(result, file, tmp_path).items():
        assert pick.measured is not None and pick.measured.alike
        own, other = rows[result.best.trial].config, rows[pick.measured.trial].config
        different = {name for name in own if own[name] != other[name]} - {"parallel.dp"}
        # A cut does not act on one stage.
        assert different == {key} | ({CUT} if key == "parallel.pp" else set())
        assert pick.measured.other_value == result.aim.words(rows[pick.measured.trial].value)
        assert f"(trial {pick.measured.trial}, all else the same)" in automatic_choices.line(pick)


def test_a_trial_that_differs_in_more_says_so(result: StudyResult, file: StudyFile, tmp_path: Path) -> None:
    assert result.best is not None
    plain = {"parallel.pp": 1, PLACEMENT: "base"}
    kept = [
        row for row in result.trials if row.number == result.best.trial or plain.items() <= row.config.items()
    ]
    pick = by_key(replace(result, trials=kept), file, tmp_path)[PLACEMENT]
    assert pick.measured is not None and not pick.measured.alike
    assert "other settings differ, too" in automatic_choices.line(pick)


def test_a_plan_is_told_beside_the_best_uniform_one(
    result: StudyResult, file: StudyFile, tmp_path: Path
) -> None:
    assert result.best is not None
    rows: list[dict[str, Any]] = [
        {"stage": 0, "micro_batch_seconds": 0.04, "uniform": "disk", "uniform_seconds": 0.05},
        {"stage": 1, "micro_batch_seconds": 0.03, "uniform": "keep", "uniform_seconds": 0.03},
    ]
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / run_folder.SUMMARY).write_text(json.dumps({"memory_plans": rows}))
    actions = ["disk", "disk", *["keep"] * 6]
    best = replace(result.best, resolved=result.best.resolved | {ACTIONS: actions})
    pick = by_key(replace(result, best=best), file, tmp_path)[ACTIONS]
    assert pick.picked == "2 disk, 6 keep"
    assert pick.foretold is not None
    assert (pick.foretold.value, pick.foretold.other) == (0.04, 0.05)
    assert "on stage 0: 40.0 ms, 50.0 ms with disk for all its blocks" in automatic_choices.line(pick)


def test_what_is_always_worked_out_is_a_pick_as_well(
    result: StudyResult, file: StudyFile, tmp_path: Path
) -> None:
    always = study(
        **{"base": file.base, "space": {"parallel.pp": [1, 2], PLACEMENT: ["auto"], CUT: ["auto"]}}
    )
    assert {PLACEMENT, CUT} <= by_key(result, always, tmp_path).keys()


def test_where_nothing_was_worked_out_nothing_is_said(
    result: StudyResult, file: StudyFile, tmp_path: Path
) -> None:
    assert result.best is not None
    plain = replace(result, best=replace(result.best, resolved={}))
    assert automatic_choices.explain_choices(plain, file, tmp_path) == []
    assert automatic_choices.explain_choices(result, None, tmp_path) == []
