"""The stop-watch over a study's winner: who is measured, what its ratios are, and what it says of the told gain."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks import closing_study as closing

KEEP, DISK = "keep", "disk"


def config(**parallel: Any) -> dict[str, Any]:
    return {
        "parallel": {"placement": None} | parallel,
        "schedule": {"stage_layers": None},
        "memory": {"budget_gib": 0.01, "block_actions": None},
        "train": {"seconds": 20.0},
    }


def found(low: float = 1.5, high: float = 3.0) -> dict[str, Any]:
    """A study whose winner has an order, a cut and a plan."""
    best = config() | {"schedule": {"stage_layers": [3, 1]}}
    gain = {"ratio": 2.0, "low": low, "high": high, "verdict": "better"}
    return {
        "told": {
            "study": "first",
            "gain": gain,
            "result_lines": ["best: it"],
            "picks": [{"line": "an order"}],
            "why": None,
        },
        "labels": {"best": "pp=2", "baseline": "dp=4"},
        "seconds": 300.0,
        "base_placement": [0, 2, 1, 3],
        "alike": [DISK, DISK, DISK, KEEP],
        "plan": [DISK, KEEP, KEEP, KEEP],
        "configs": {"best": best, "baseline": config(placement=[0, 2, 1, 3])},
    }


def run(loss: float, wall: float = 25.0) -> dict[str, Any]:
    return {"loss": loss, "wall": wall, "updates": 10}


def test_each_pick_is_taken_back_by_itself() -> None:
    arms = closing.arms(found())
    assert arms[closing.ORDER]["parallel"]["placement"] == [0, 2, 1, 3]
    assert arms[closing.ORDER]["schedule"] == arms[closing.WINNER]["schedule"]
    assert arms[closing.EVEN]["schedule"]["stage_layers"] is None
    memory = arms[closing.ALIKE]["memory"]
    assert (memory["budget_gib"], memory["block_actions"]) == (None, [DISK, DISK, DISK, KEEP])
    assert arms[closing.AGAIN] == arms[closing.BASELINE]
    plain = found()
    plain["configs"]["best"] = plain["configs"]["baseline"]
    plain["plan"] = plain["alike"]
    assert list(closing.arms(plain)) == [closing.WINNER, closing.BASELINE, closing.AGAIN]


def test_the_baseline_with_more_time_plans_for_it() -> None:
    assert [one["train"]["seconds"] for one in closing.longer(found()).values()] == [40.0, 60.0, 80.0]


def test_a_ratio_has_the_interval_of_its_rounds() -> None:
    """By hand: logarithms 0.6, 0.7 and 0.8 scatter by 0.1, and Student's 97.5 % with two degrees is 4.303."""
    ratio = closing.over([math.exp(one) for one in (0.6, 0.7, 0.8)], [1.0, 1.0, 1.0])
    half = 4.303 * 0.1 / math.sqrt(3)
    assert ratio.middle == pytest.approx(math.exp(0.7))
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(0.7 - half), math.exp(0.7 + half)), rel=1e-3)
    assert closing.over([2.0], [1.0]) == (2.0, None, None)
    assert closing.over([2.0], [1.0]).verdict == "cannot decide"


@pytest.mark.parametrize(
    ("plain", "low", "words"),
    [
        ([4.0, 4.1, 4.2], 1.5, "its mean lies inside"),
        ([4.0, 4.1, 4.2], 2.5, "its mean lies outside"),
        ([1.6, 2.4, 2.0], 1.5, "No gain is confirmed"),
        ([4.0], 1.5, "nothing is confirmed"),
    ],
)
def test_what_was_told_stands_beside_what_was_watched(plain: list[float], low: float, words: str) -> None:
    taken = {closing.WINNER: [run(2.0) for _ in plain], closing.BASELINE: [run(loss) for loss in plain]}
    assert words in closing.verdict({"study": found(low), "runs": taken})


def test_how_long_the_baseline_takes_is_of_whole_processes() -> None:
    twice, thrice, last = closing.longer(found())
    taken = {
        closing.WINNER: [run(2.0)],
        twice: [run(2.1, 46.0)],
        thrice: [run(1.9, 66.0)],
        last: [run(1.8, 86.0)],
    }
    assert closing.reached({"study": found(), "runs": taken}).endswith("3 times the seconds 66.0 s.")
    taken[thrice] = taken[last] = [run(2.05, 86.0)]
    assert closing.reached({"study": found(), "runs": taken}).endswith("did not reach it in 86.0 s.")


def test_the_table_has_every_arm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arms = {name: [run(2.0), run(2.1)] for name in closing.arms(found())}
    more = {name: [run(2.5)] for name in closing.longer(found())}
    closing.show({"study": found(), "runs": arms | more}, "closing_study", False)
    said = capsys.readouterr().out
    assert all(f"| {name} |" in said for name in (*arms, *closing.longer(found())))
    assert "does not reach it" in said and "- an order" in said
