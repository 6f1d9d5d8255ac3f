"""Why a winner wins: the parts of two runs' steps for the same tokens, and the sentence made of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.run import run_folder
from tuning.report.study_result import Entry, StudyResult
from workbench.analysis import why

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


def uplink(share: float) -> list[dict[str, Any]]:
    """A host's interface and an island's, the latter used so much."""
    rows = [("data", [0], 0.1), ("uplink", [0, 1], share)]
    return [
        {"interface": name, "ranks": ranks, "sent_utilization": used, "received_utilization": None}
        for name, ranks, used in rows
    ]


def test_what_is_saved_and_paid_is_told_in_the_order_of_its_size() -> None:
    fast = summary(
        0.05, phases={"bubble": 0.1}, wire=1e6, interfaces=uplink(0.4), axes={"dp": 0.01, "pp": 0.04}
    )
    slow = summary(2.0, wire=12e6, interfaces=uplink(0.95))
    found = why.compare(fast, slow, "pp=2", "dp=4", "baseline")
    assert [part.name for part in found.parts[:3]] == ["waiting for dp", "pipeline bubble", "waiting for pp"]
    assert [round(part.saved, 6) for part in found.parts[:3]] == [1.99, -0.1, -0.04]
    assert found.other_seconds - found.seconds == pytest.approx(sum(part.saved for part in found.parts))
    said = why.line(found)
    assert said == (
        "Compared with the baseline (dp=4), a step of 2,048 tokens takes 461.0 ms instead of 2.31 s; "
        "saved: waiting for dp 1.99 s (2.00 s to 10.0 ms); paid: pipeline bubble 100.0 ms (0.0 ms to 100.0 ms); "
        "a rank sends 1 MB a step instead of 12 MB; its busiest link (uplink of ranks 0, 1) is 40 % used, the other's "
        "(uplink of ranks 0, 1) 95 % and so full."
    )


def test_steps_of_other_sizes_are_compared_for_the_same_tokens() -> None:
    found = why.compare(summary(tokens=1024), summary(tokens=4096, wire=8e6), "a", "b", "runner_up")
    assert found.other_seconds == pytest.approx(found.seconds / 4)
    assert found.other_wire_bytes == 2e6
    assert (
        "Compared with the nearest (b), a step of 1,024 tokens takes 311.0 ms instead of 77.8 ms"
        in why.line(found)
    )


def test_bytes_that_read_alike_are_not_told_twice() -> None:
    found = why.compare(summary(wire=5.4124e6), summary(wire=5.4125e6), "a", "b", "baseline")
    assert "a rank sends 5.41 MB a step, as the other does" in why.line(found)


def left_behind(home: Path, run: str, found: dict[str, Any]) -> Entry:
    """A run's folder, and the study's entry for it."""
    (home / run).mkdir(parents=True)
    (home / run / run_folder.SUMMARY).write_text(json.dumps(found), encoding="utf-8")
    return Entry(trial=0, run=run, config={"name": run}, label=run)


def test_a_study_names_the_baseline_or_the_nearest_and_needs_both_runs(tmp_path: Path) -> None:
    first, second = left_behind(tmp_path, "one", summary(0.1)), left_behind(tmp_path, "two", summary(0.5))
    found = why.of_study(StudyResult(best=first, baseline=second), tmp_path)
    assert found is not None
    assert (found["winner"], found["other"], found["role"]) == ("one", "two", "baseline")
    found = why.of_study(StudyResult(best=first, baseline=first, runner_up=second), tmp_path)
    assert found is not None
    assert found["role"] == "runner_up"
    assert why.of_study(StudyResult(best=first, baseline=first, runner_up=None), tmp_path) is None
    assert why.of_study(StudyResult(best=None), tmp_path) is None
    assert why.of_study(StudyResult(best=first, baseline=replace(second, run="gone")), tmp_path) is None
