"""Figures' numbers: averaging, joining of ranks, thinning, units; and what happens when there is nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from profilers.model.run_summary import CommunicationRow
from profilers.records.schema import PHASES
from workbench.figures import base
from workbench.figures import steps as series
from workbench.records.columns import Columns

EMPTY: Columns = {}


def columns(seconds: list[float], first: int = 0, warmup: int = 0, **fields: list[float]) -> Columns:
    count = len(seconds)
    shares = {f"{phase}_seconds": np.zeros(count) for phase in PHASES}
    shares["forward_seconds"], shares["backward_seconds"] = np.array(seconds) * 0.25, np.array(seconds) * 0.75
    steps = np.arange(first, first + count)
    named: dict[str, Any] = {name: np.array(values, dtype=float) for name, values in fields.items()}
    return {"step": steps, "measured": steps >= warmup, "step_seconds": np.array(seconds)} | shares | named


@given(hnp.arrays(np.float64, st.integers(0, 5_000), elements=st.floats(-1e9, 1e9)), st.integers(10, 200))
def test_thinning_keeps_the_extremes_and_the_order(values: np.ndarray[Any, Any], limit: int) -> None:
    keep = series.thin(values, limit)
    assert len(keep) <= max(limit, 10)
    assert list(keep) == sorted(set(keep))
    if len(values):
        assert values[keep].min() == values.min()
        assert values[keep].max() == values.max()


def test_thinning_passes_over_absent_values() -> None:
    values = np.full(4_000, np.nan)
    values[1_234] = 7.0
    assert 1_234 in series.thin(values, 100)


def test_a_line_has_plain_numbers_and_none() -> None:
    found = series.line("x", np.array([1, 2]), np.array([0.5, np.nan]))
    assert found == series.Line("x", [1.0, 2.0], [0.5, None])
    assert all(type(value) is float for value in found.x)


def test_phases_of_a_short_run_have_a_bar_per_step() -> None:
    found = series.phase_series(columns([0.1, 0.2], warmup=1), "rank 0")
    assert found.steps == [0, 1]
    assert found.steps_per_bar == 1
    assert found.milliseconds["backward"] == pytest.approx([75.0, 150.0])
    assert found.warmup_until == 1


def test_a_run_that_is_only_warming_up_is_shaded_to_its_end() -> None:
    assert series.warmup_until(columns([0.1, 0.2], warmup=9)) == 2
    assert series.warmup_until(columns([0.1, 0.2])) is None
    assert series.warmup_until(EMPTY) is None


def test_phases_of_a_long_run_are_averaged_into_few_bars() -> None:
    seconds = list(np.linspace(0.1, 0.2, 1_000))
    found = series.phase_series(columns(seconds), "rank 0", bars=90)
    assert len(found.steps) <= 90
    assert found.steps[:2] == [0, found.steps_per_bar]
    means = [np.mean(seconds[at : at + found.steps_per_bar]) * 750 for at in found.steps]
    assert found.milliseconds["backward"] == pytest.approx(means)


def test_steps_that_were_not_recorded_in_detail_are_undivided_bars_or_do_not_count() -> None:
    given_of = columns([0.1, 0.2, 0.4, 0.2])
    for phase in PHASES:
        given_of[f"{phase}_seconds"][[1, 3]] = np.nan  # type: ignore[index]
    found = series.phase_series(given_of, "rank 0")
    assert found.undivided == pytest.approx([0.0, 200.0, 0.0, 200.0])
    assert found.milliseconds["backward"] == pytest.approx([75.0, 0.0, 300.0, 0.0])
    found = series.phase_series(given_of, "rank 0", bars=2)
    assert found.undivided == [0.0, 0.0]
    assert found.milliseconds["backward"] == pytest.approx([75.0, 300.0])
    drawn = base.phases(series.phase_series(given_of, "rank 0"))
    assert drawn.data[-1].name == "not recorded in detail"
    assert "detail" not in str([trace.name for trace in base.phases(found).data])


def test_the_slowest_rank_is_chosen_step_by_step_among_common_steps() -> None:
    ranks = {0: columns([0.1, 0.5, 0.1]), 1: columns([0.3, 0.2], first=0), 2: EMPTY}
    found = series.slowest_rank(ranks)
    assert list(found["step"]) == [0, 1]
    assert list(found["step_seconds"]) == [0.3, 0.5]
    assert list(found["forward_seconds"]) == pytest.approx([0.075, 0.125])


def test_ranks_that_share_no_step_yet_give_an_empty_figure() -> None:
    found = series.slowest_rank({0: columns([0.1]), 1: columns([0.1], first=5)})
    assert series.phase_series(found, "slowest").steps == []


def test_few_ranks_are_lines_and_many_are_a_spread() -> None:
    few = series.rank_series({1: columns([0.1]), 0: columns([0.2])})
    assert [line.name for line in few.lines] == ["rank 0", "rank 1"]
    assert few.lines[0].y == [200.0]
    many = series.rank_series({rank: columns([rank / 100]) for rank in range(1, 12)})
    assert [(line.name, line.y) for line in many.lines] == [
        ("slowest", [110.0]),
        ("median", [60.0]),
        ("fastest", [10.0]),
    ]


def test_the_loss_is_the_mean_of_the_ranks_that_have_one() -> None:
    nothing = [np.nan, np.nan]
    ranks = {0: columns([0.1, 0.1], loss=[2.0, 1.0]), 1: columns([0.1, 0.1], loss=nothing)}
    assert series.loss_series(ranks) == series.LossSeries([0.0, 1.0], [2.0, 1.0], None)
    ranks[1] = columns([0.1], loss=[4.0])
    assert series.loss_series(ranks, 0.9) == series.LossSeries([0.0, 1.0], [3.0, 1.0], 0.9)


def test_the_losses_of_a_summary_keep_their_gaps() -> None:
    assert series.losses_of([2.0, None, 1.0]).losses == [2.0, None, 1.0]


def test_collectives_are_ordered_and_in_the_units_of_the_figure() -> None:
    rows = [
        CommunicationRow("pp", "send", 2, 5e5, None, None, None),
        CommunicationRow("dp", "all_reduce", 3, 4e6, seconds=0.02, exposed_seconds=0.015, bus_bandwidth=2e9),
    ]
    found = series.collective_series(rows)
    assert found.labels == ["all_reduce · dp", "send · pp"]
    assert found.exposed_milliseconds == [15.0, None]
    assert found.hidden_milliseconds == [pytest.approx(5.0), None]
    assert found.megabytes == [4.0, 0.5]
    assert found.bus_gigabytes_per_second == [2.0, None]
    old = replace(rows[0], seconds=0.01, exposed_seconds=0.004)
    received = replace(rows[1], operation="recv")
    assert series.collective_series([old, received, rows[1]]).hidden_milliseconds == [
        None, pytest.approx(5.0), None
    ]  # fmt: skip


def test_nothing_gives_empty_series() -> None:
    assert series.phase_series(EMPTY, "rank 0").steps == []
    assert series.rank_series({}).lines == []
    assert series.loss_series({}).steps == []
    assert series.collective_series([]).labels == []
