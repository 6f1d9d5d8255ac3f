"""What mattered, on studies whose answer is known: importance, dependence, neighbours, SHAP, and its limits."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.support.studies import known_study as known
from tuning.sensitivity import data
from tuning.sensitivity.data import columns
from tuning.sensitivity.effects import Neighbour, dependence, neighbours
from tuning.sensitivity.importance import importance
from tuning.sensitivity.models import explain_trials, fanova
from tuning.sensitivity.outcomes import ModelEffects, Shap
from tuning.storage.state import StudyState

FILE = known.file()
SPACE = FILE.search_space


@functools.cache
def said(worth: Any = known.value, count: int = known.EVERY, spread: float = known.NOISE) -> Shap:
    return explain_trials(known.state(count, worth, spread), FILE, lambda *_: None)


def effects(part: ModelEffects) -> dict[str, float]:
    return {row.key: row.effect for row in part.knobs or ()}


def test_a_failure_counts_only_if_it_speaks_about_the_configuration() -> None:
    lines = known.lines(1)
    ends: list[tuple[dict[str, Any], bool | None]] = [
        ({"outcome": "oom", "constraints": {"oom": 1.0}}, True),
        ({"outcome": "hang", "constraints": {"hang": 1.0}}, True),
        ({"outcome": "hang"}, None),
        ({"outcome": "stopped"}, None),
        ({"outcome": "pruned", "value": 3.0, "constraints": {"loss_guard": 0.1}}, False),
    ]
    for told, expected in ends:
        tell = {"kind": "tell", "number": 0, "at_unix": 2.0} | told
        trial = known.fold([*lines[:2], tell]).trials[0]
        assert data.has_failed(trial) is expected, told


def test_pedanova_and_fanova_rank_the_knobs() -> None:
    shares = importance(known.state(), SPACE).values
    assert shares is not None
    assert shares["parallel.zero_stage"] < min(shares["memory.recompute"], shares["compile"])
    first = next(fanova(known.state(), SPACE))
    assert next(iter(first.values)) == "memory.recompute"
    assert first.values["parallel.zero_stage"] < 0.02
    assert first.trees == 8
    assert first.complete is False
    assert 0.02 < first.interactions < 0.5
    assert sum(first.values.values()) + first.interactions == pytest.approx(1)


def test_fanova_says_why_it_is_not_known() -> None:
    few = next(fanova(known.state(9), SPACE))
    assert few.values is None
    assert "needs 12 measured trials" in few.reason


def test_shap_has_the_size_and_the_direction_of_each_effect() -> None:
    found = effects(said().value)
    assert next(iter(found)) == "memory.recompute"
    # 1 and 0.7, about as many of each: half the distance of the logarithms either way.
    assert found["memory.recompute"] == pytest.approx(19.5, abs=4)
    assert found["parallel.zero_stage"] < 0.5
    assert said().value.r_squared > 0.9
    rows = {row.key: row for row in said().value.knobs}
    assert rows["batch.micro_batch"].direction == "up"
    assert rows["memory.recompute"].direction is None
    by_value = {at.value: at.effect for at in rows["memory.recompute"].values}
    assert by_value["full"] < 0 < by_value["none"]
    assert sum(at.trials for at in rows["batch.micro_batch"].values) == said().value.trials


def test_the_planted_interaction_is_the_first_pair() -> None:
    first, second = said().value.pairs[:2]
    assert set(first.keys) == {"parallel.pp", "compile"}
    assert first.effect > 3 * second.effect


def test_the_failing_region_is_found_by_its_two_knobs() -> None:
    failure = said().failure
    assert failure.auc > 0.95
    assert set(list(effects(failure))[:2]) == {"batch.micro_batch", "memory.recompute"}
    assert set(failure.pairs[0].keys) == {"batch.micro_batch", "memory.recompute"}


def test_a_model_that_predicts_nothing_is_not_interpreted() -> None:
    found = said(known.noise, 60, 0.2)
    assert found.value.knobs is None
    assert found.value.r_squared < 0.2
    assert "below 0.2 it is not interpreted" in found.value.reason
    assert "0 of 60 failed" in found.failure.reason
    assert found.neighbours == []
    assert "needs 20 measured trials" in said(known.noise, 10, 0.2).value.reason


def test_predicted_dependence_moves_the_same_trials() -> None:
    found = {row.key: row.values for row in said().dependence}
    none, full = (at.mean for at in found["memory.recompute"])
    assert full / none == pytest.approx(0.7, abs=0.05)
    assert found["parallel.zero_stage"][0].mean == pytest.approx(
        found["parallel.zero_stage"][1].mean, rel=0.01
    )


def test_measured_dependence_counts_its_trials() -> None:
    found = {row.key: row for row in dependence(known.state(), SPACE)}
    recompute = found["memory.recompute"]
    assert recompute.reason == ""
    assert recompute.trials == sum(at.trials for at in recompute.values)
    assert {at.value: at.failed > 0 for at in recompute.values} == {"none": True, "full": False}
    zero = found["parallel.zero_stage"]
    assert zero.trials < recompute.trials  # with one data rank it does not act
    nothing = {row.key: row for row in dependence(StudyState(), SPACE)}
    assert nothing["memory.recompute"].reason == "it acted in no measured trial"


def by_step(found: list[Neighbour]) -> dict[tuple[str, Any], Neighbour]:
    return {(one.key, one.value): one for one in found}


def test_neighbours_lose_what_was_planted() -> None:
    found = by_step(neighbours(known.state(), FILE))
    winner = next(iter(found.values()))
    assert winner.stands == "measured"
    recompute = found["memory.recompute", "full"]
    assert recompute.stands == "measured"
    assert recompute.loss_percent == pytest.approx(30, abs=3)
    assert recompute.low_percent is not None and recompute.high_percent is not None
    assert recompute.low_percent < recompute.loss_percent < recompute.high_percent
    assert found["compile", False].loss_percent == pytest.approx(20, abs=3)
    assert found["batch.micro_batch", 2].loss_percent == pytest.approx(9, abs=3)
    bigger = found["batch.micro_batch", 8]
    assert (bigger.stands, bigger.loss_percent, bigger.reason) == ("failed", None, "out of memory")
    assert ("parallel.pp", 4) not in found  # two steps away


def test_a_neighbour_that_was_not_measured_is_told_apart() -> None:
    lines = known.lines()
    target = next(one for one in neighbours(known.fold(lines), FILE) if one.key == "memory.recompute")
    without = known.fold([line for line in lines if line.get("number") not in target.trials])
    again = by_step(neighbours(without, FILE))["memory.recompute", "full"]
    assert (again.stands, again.loss_percent, again.trials) == ("unknown", None, ())
    predicted = explain_trials(without, FILE, lambda *_: None)
    (row,) = [row for row in predicted.neighbours if row.key == "memory.recompute"]
    assert row.low_percent < 30 < row.high_percent
    assert row.failure_chance < 0.3


def test_a_study_without_a_measured_trial_has_no_neighbours() -> None:
    assert neighbours(StudyState(), FILE) == []


def test_a_value_that_was_not_seen_is_not_guessed() -> None:
    points = [data.knobs_at(SPACE, trial) for trial in data.measured_trials(known.state(30))]
    seen = [point for point in points if point["batch.micro_batch"] < 8]
    made = columns(SPACE.knobs, seen)
    assert made.know(seen[0])
    assert not made.know(seen[0] | {"batch.micro_batch": 8})
    assert not made.know(seen[0] | {"memory.recompute": "selective"})
