"""``show`` judges a run again with the thresholds that are asked for, and says what each verdict rests on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.approximate import about
from tests.workbench.conftest import Furnished, Run


def run_of(home: Path) -> str:
    return next(path.name for path in home.iterdir() if path.name.endswith("-9f10"))


def test_a_verdict_tells_evidence_threshold_knob_and_gain(command: Run, furnished: Furnished) -> None:
    run = run_of(furnished.home)
    at = "show", run, "--home", furnished.home, "--threshold", "exposed=0.05"
    text = command(*at).out
    assert "finding      exposed all-gather (dp), above exposed=0.05: ranks wait" in text
    assert "change: gather less often with a smaller parallel.zero_stage" in text
    assert "of a step = exposed seconds / step, if all of it ran beside computation" in text
    assert "below limits" in text
    verdict = command(*at, "--json").document["verdicts"][0]
    assert (verdict["name"], verdict["axis"], verdict["threshold"]) == ("exposed_all_gather", "dp", 0.05)
    assert verdict["share"] > verdict["threshold"]
    assert verdict["gain"]["fraction"] == about(verdict["share"])


def test_thresholds_are_changed_at_reading(command: Run, furnished: Furnished) -> None:
    run = run_of(furnished.home)
    at = "show", run, "--home", furnished.home, "--json"
    usual = {one["name"] for one in command(*at).document["verdicts"]}
    assert "input_bound" not in usual
    asked = command(*at, "--threshold", "input=0.001", "--threshold", "exposed=0.9").document
    assert {one["name"] for one in asked["verdicts"]} == {"input_bound"}
    assert asked["verdicts"][0]["threshold"] == 0.001
    assert {one["threshold"] for one in asked["findings"] if one["name"].startswith("exposed")} == {0.9}
    assert {one["name"] for one in command(*at).document["verdicts"]} == usual


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bubbl=0.1", ("bubbl=0.1", "known here: bubble, clock")),
        ("bubble=2", ("at most 1",)),
        ("bubble=ten", ("must be a number",)),
        ("bubble", ("NAME=FRACTION", "straggler")),
    ],
)
def test_a_wrong_threshold_is_refused(
    command: Run, furnished: Furnished, text: str, words: tuple[str, ...]
) -> None:
    done = command("show", run_of(furnished.home), "--home", furnished.home, "--threshold", text)
    done.refused("--threshold", *words)


def test_a_study_has_no_thresholds(command: Run, furnished: Furnished) -> None:
    command("show", "quickstart", "--home", furnished.home, "--threshold", "bubble=0.1").refused("only a run")


def test_a_summary_of_an_older_version_is_judged_from_its_records(command: Run, own_home: Furnished) -> None:
    run = run_of(own_home.home)
    path = own_home.home / run / "summary.json"
    old = json.loads(path.read_text("utf-8"))
    rows = [
        {"name": "communication_exposed", "evidence": "27% of the step", "threshold": 0.2, "knob": "overlap"}
    ]
    path.write_text(json.dumps({**old, "findings": [], "verdicts": rows}), "utf-8")
    assert "exposed communication: 27% of the step" in command("show", run).out
    found = command("show", run, "--threshold", "exposed=0.05", "--json").document["verdicts"]
    assert "exposed_all_gather" in {one["name"] for one in found}


def test_the_run_s_own_thresholds_hold_at_reading(command: Run, own_home: Furnished) -> None:
    run = run_of(own_home.home)
    path = own_home.home / run / "config.json"
    tree = json.loads(path.read_text("utf-8")) | {"profile": {"thresholds": {"input": 0.001}}}
    path.write_text(json.dumps(tree), "utf-8")
    found = command("show", run, "--threshold", "exposed=0.9", "--json").document["verdicts"]
    assert [one["name"] for one in found] == ["input_bound"]
