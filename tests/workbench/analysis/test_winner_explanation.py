"""Why a winner wins: the parts of two runs' steps for the same tokens, and the sentence made of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.run import run_folder
from tuning.report.study_result import ArmRow, ConfirmationRounds, Entry, Gain, RoundRow, StudyResult
from workbench.analysis import winner_explanation

PHASES = {"data": 0.001, "forward": 0.1, "backward": 0.2, "optimizer": 0.01, "bubble": 0.0, "other": 0.0}


def summary(exposed: float = 0.0, tokens: int = 2048, **more: Any) -> dict[str, Any]:
    """What a run left, with so many seconds of waiting."""
    return {
        "tokens_per_step": tokens,
        "phases": PHASES | {"communication_exposed": exposed} | more.pop("phases", {}),
        "exposed_seconds_by_axis": more.pop("axes", {"dp": 1.0}),
        "wire_bytes_per_step": more.pop("wire", None),
        "interfaces": more.pop("interfaces", []),
    }


def uplink(share: float, *ranks: int) -> list[dict[str, Any]]:
    """A host's interface and an island's, the latter used so much."""
    rows = [("data", [0], 0.1), ("uplink", list(ranks), share)]
    return [
        {"interface": name, "ranks": ranks, "sent_utilization": used, "received_utilization": None}
        for name, ranks, used in rows
    ]


def test_what_is_saved_and_paid_is_told_in_the_order_of_its_size() -> None:
    fast = summary(
        0.05, phases={"bubble": 0.1}, wire=1e6, interfaces=uplink(0.4, 2), axes={"dp": 0.01, "pp": 0.04}
    )
    slow = summary(2.0, wire=12e6, interfaces=uplink(0.95, 0, 1))
    found = winner_explanation.compare(fast, slow, "pp=2", "dp=4", "baseline")
    assert [part.name for part in found.parts[:3]] == ["waiting for dp", "pipeline bubble", "waiting for pp"]
    assert [round(part.saved, 6) for part in found.parts[:3]] == [1.99, -0.1, -0.04]
    assert found.other_seconds - found.seconds == pytest.approx(sum(part.saved for part in found.parts))
    said = winner_explanation.line(found)
    assert said == (
        "Compared with the baseline (dp=4), a step of 2,048 tokens takes 461.0 ms instead of 2.31 s; "
        "saved: waiting for dp 1.99 s (2.00 s to 10.0 ms); paid: pipeline bubble 100.0 ms (0.0 ms to 100.0 ms); "
        "a rank sends 1 MB a step instead of 12 MB; its busiest link (uplink of rank 2) is 40 % used, the other's "
        "(uplink of ranks 0, 1) 95 % and so full."
    )


def test_steps_of_other_sizes_are_compared_for_the_same_tokens() -> None:
    found = winner_explanation.compare(
        summary(tokens=1024), summary(tokens=4096, wire=8e6), "a", "b", "runner_up"
    )
    assert found.other_seconds == pytest.approx(found.seconds / 4)
    assert found.other_wire_bytes == 2e6
    assert (
        "Compared with the nearest (b), a step of 1,024 tokens takes 311.0 ms instead of 77.8 ms"
        in winner_explanation.line(found)
    )


def test_bytes_that_read_alike_are_not_told_twice() -> None:
    found = winner_explanation.compare(summary(wire=5.4124e6), summary(wire=5.4125e6), "a", "b", "baseline")
    assert "a rank sends 5.41 MB a step, as the other does" in winner_explanation.line(found)


def left_behind(home: Path, run: str, found: dict[str, Any]) -> Entry:
    """A run's folder, and the study's entry for it."""
    (home / run).mkdir(parents=True)
    (home / run / run_folder.SUMMARY).write_text(json.dumps(found), encoding="utf-8")
    return Entry(0, run, {"name": run}, label=run)


FASTER = Gain(1.3, 1.2, 1.4, "better", confirmed=True)


def arm(entry: Entry, runs: list[str], ratio: float, low: float, high: float) -> ArmRow:
    rounds = [RoundRow(number, run, 1.0) for number, run in enumerate(runs)]
    return ArmRow(entry.trial, entry.label, False, 1.0, rounds, ratio, low, high)


def measured_again(*arms: ArmRow) -> ConfirmationRounds:
    numbers = [row.trial for row in arms]
    return ConfirmationRounds(
        arms=list(arms),
        beside=numbers[0],
        order=numbers,
        winner=numbers[0],
        tied=[],
        recommended=numbers[0],
        decided_by="speed",
        why="",
    )


def test_a_study_names_the_baseline_or_the_nearest_and_needs_both_runs(tmp_path: Path) -> None:
    first, second = left_behind(tmp_path, "one", summary(0.1)), left_behind(tmp_path, "two", summary(0.5))
    second = replace(second, trial=1)
    found = winner_explanation.explain_winner(StudyResult(best=first, baseline=second, gain=FASTER), tmp_path)
    assert found is not None
    assert (found.winner, found.other, found.role) == ("one", "two", "baseline")
    behind = measured_again(arm(first, ["one"], 1.0, 1.0, 1.0), arm(second, ["two"], 0.7, 0.6, 0.8))
    itself = StudyResult(best=first, baseline=first, runner_up=second, confirmation_rounds=behind)
    found = winner_explanation.explain_winner(itself, tmp_path)
    assert found is not None
    assert found.role == "runner_up"
    assert (
        winner_explanation.explain_winner(StudyResult(best=first, baseline=first, gain=FASTER), tmp_path)
        is None
    )
    assert winner_explanation.explain_winner(StudyResult(), tmp_path) is None
    gone = StudyResult(best=first, baseline=replace(second, run="gone"), gain=FASTER)
    assert winner_explanation.explain_winner(gone, tmp_path) is None


@pytest.mark.parametrize("gain", [None, Gain(1.1, 0.9, 1.3, "tie"), Gain(1.1, None, None, "tie")])
def test_what_was_not_shown_is_not_explained(tmp_path: Path, gain: Gain | None) -> None:
    first, second = left_behind(tmp_path, "one", summary(0.1)), left_behind(tmp_path, "two", summary(0.5))
    assert (
        winner_explanation.explain_winner(StudyResult(best=first, baseline=second, gain=gain), tmp_path)
        is None
    )
    close = measured_again(
        arm(first, ["one"], 1.0, 1.0, 1.0), arm(replace(second, trial=1), ["two"], 0.99, 0.9, 1.1)
    )
    itself = StudyResult(
        best=first, baseline=first, runner_up=replace(second, trial=1), confirmation_rounds=close
    )
    assert winner_explanation.explain_winner(itself, tmp_path) is None


def test_the_runs_that_showed_it_explain_it_not_the_lucky_one_of_the_search(tmp_path: Path) -> None:
    """Found with 2 s a step on a busy machine, then measured again: twice as fast as the baseline."""
    first, second = left_behind(tmp_path, "one", summary(2.0)), left_behind(tmp_path, "two", summary(0.5))
    second = replace(second, trial=1)
    for name, exposed in (("again-1", 0.1), ("again-2", 0.2), ("base-1", 0.6), ("base-2", 0.8)):
        left_behind(tmp_path, name, summary(exposed, wire=1e6))
    rounds = measured_again(
        arm(first, ["again-1", "again-2"], 1.3, 1.2, 1.4), arm(second, ["base-1", "base-2"], 1.0, 1.0, 1.0)
    )
    study = StudyResult(best=first, baseline=second, gain=FASTER, confirmation_rounds=rounds)
    found = winner_explanation.explain_winner(study, tmp_path)
    assert found is not None
    base = sum(PHASES.values())
    assert found.seconds == pytest.approx(((base + 0.1) * (base + 0.2)) ** 0.5), "as the study's value is"
    assert found.other_seconds == pytest.approx(((base + 0.6) * (base + 0.8)) ** 0.5)
    assert (found.runs, found.other_runs) == (2, 2)
    said = winner_explanation.line(found)
    assert "takes 458.3 ms instead of 1.01 s, means of 2 and 2 runs" in said
    assert "saved: waiting for dp 547.5 ms (696.6 ms to 149.1 ms)" in said


def test_an_explanation_that_contradicts_the_verdict_is_not_given(tmp_path: Path) -> None:
    first, second = left_behind(tmp_path, "one", summary(0.9)), left_behind(tmp_path, "two", summary(0.5))
    study = StudyResult(best=first, baseline=replace(second, trial=1), gain=FASTER)
    assert winner_explanation.explain_winner(study, tmp_path) is None
