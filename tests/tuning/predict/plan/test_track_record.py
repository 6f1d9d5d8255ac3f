"""Finished runs beside what the calibration alone predicts of them."""

from __future__ import annotations

import pytest

from tests.tuning.predict.test_correction import HERE, TARGET, config, ran
from tuning.predict.forecast import forecast
from tuning.predict.plan.track_record import find_measured_runs, plan_values, record_of


def predicted(**parallel: int) -> float:
    one = config(**parallel)
    return forecast(one, TARGET.adapt_to_config(one)).step_seconds.median


def test_each_configuration_is_a_row_with_its_runs_and_ratio() -> None:
    slow, fast = 3.0 * predicted(dp=4), predicted(tp=4)
    runs = [ran(config(dp=4), slow, "a"), ran(config(dp=4), slow, "b"), ran(config(tp=4), fast, "c")]
    found = record_of(runs, TARGET, HERE)
    assert [row.runs for row in found.rows] == [["c"], ["b", "a"]]
    tp, dp = found.rows
    assert (dp.layout["dp"], dp.measured_seconds, dp.ratio) == (4, pytest.approx(slow), pytest.approx(3.0))
    assert (tp.ratio, tp.inside) == (pytest.approx(1.0), True)
    assert dp.inside == (dp.low_seconds <= slow <= dp.high_seconds)
    assert found.as_dict()["rows"][1]["runs"] == ["b", "a"]


def test_a_planned_layout_finds_its_own_runs_alone() -> None:
    found = record_of([ran(config(dp=4), 1.0, "a"), ran(config(micro=2, dp=4), 2.0, "b")], TARGET, HERE)
    one = config(micro=2, dp=4)
    row = find_measured_runs(found, forecast(one, TARGET.adapt_to_config(one)))
    assert row is not None
    assert (row.runs, row.values["batch.micro_batch"]) == (["b"], 2)
    other = config(tp=4)
    assert find_measured_runs(found, forecast(other, TARGET.adapt_to_config(other))) is None
    assert plan_values(one) != plan_values(config(dp=4))


def test_nothing_to_compare_is_said() -> None:
    elsewhere = ran(config(dp=4), 1.0, fingerprint={**HERE.as_dict(), "cpu": "another"})
    found = record_of([elsewhere], TARGET, HERE)
    assert (found.rows, found.left_out) == ([], 1)
    assert found.reason == "no run of this home that ran to its end can be predicted"
