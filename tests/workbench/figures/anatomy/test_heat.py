"""The numbers of the heat map are those that ranks recorded, and nothing that stands out is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from profilers.records.reader import RunRecords
from profilers.records.schema import PHASES
from profilers.records.writer import RecordWriter
from tests.support.samples import step_sample, whole_step
from workbench.figures.anatomy import heat
from workbench.figures.anatomy.heat import METRICS, MOST_COLUMNS, OWN_WORK, STEP, heat_series, metric_of
from workbench.records.archive import tail
from workbench.records.columns import Columns, Stream

RANKS = 3


def recorded(folder: Path, steps: int = 4, late: tuple[int, int] = (2, 3)) -> dict[int, Columns]:
    """Step s of rank r: 10 (r + 1) ms of forward, 2 ms of backward, 1 ms of data; ``late`` is 100 ms longer."""
    for rank in range(RANKS):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            for step in range(steps):
                forward = 0.010 * (rank + 1) + 0.1 * ((rank, step) == late)
                writer.write(
                    step_sample(step, measured=step > 0, forward=forward, backward=0.002, data=0.001)
                )
    return {rank: Stream(tail(folder / f"rank-{rank}.step")).refresh() for rank in range(RANKS)}


def each(metric: heat.Metric) -> dict[str, list[int]]:
    return {f"rank {rank}": [rank] for rank in metric.ranks}


def test_a_cell_is_what_the_rank_recorded(tmp_path: Path) -> None:
    steps = recorded(tmp_path)
    found = metric_of(steps, OWN_WORK)
    series = heat_series(found, each(found))
    assert series.titles == ["rank 0", "rank 1", "rank 2"]
    assert series.milliseconds[0] == pytest.approx([12.0] * 4)
    assert series.milliseconds[2] == pytest.approx([32.0, 32.0, 32.0, 132.0])
    assert series.places[2] == [(2, 0), (2, 1), (2, 2), (2, 3)]
    whole = metric_of(steps, STEP)
    assert heat_series(whole, each(whole)).milliseconds[1] == pytest.approx([23.0] * 4)


def test_beside_the_median_rank_only_the_difference_is_left(tmp_path: Path) -> None:
    found = metric_of(recorded(tmp_path), OWN_WORK)
    series = heat_series(found, each(found), relative=True)
    assert [row[0] for row in series.milliseconds] == pytest.approx([-10.0, 0.0, 10.0])
    assert series.milliseconds[2][3] == pytest.approx(110.0)
    (trace,) = heat.heat(series).data
    assert (trace.zmin, trace.zmax) == (pytest.approx(-110.0), pytest.approx(110.0))


def test_warm_up_does_not_leave_the_measured_steps_one_colour(tmp_path: Path) -> None:
    found = metric_of(recorded(tmp_path, late=(2, 0)), OWN_WORK)
    series = heat_series(found, each(found))
    assert series.milliseconds[2][0] == pytest.approx(132.0), "what the first step took is still told"
    assert series.scale == (pytest.approx(12.0), pytest.approx(32.0))
    assert series.exceeds_scale
    (trace,) = heat.heat(series).data
    assert (trace.zmin, trace.zmax) == series.scale
    beside = heat_series(found, each(found), relative=True)
    (trace,) = heat.heat(beside).data
    assert (trace.zmin, trace.zmax) == (pytest.approx(-10.0), pytest.approx(10.0))


def test_while_no_step_is_measured_all_of_them_make_the_scale(tmp_path: Path) -> None:
    found = metric_of(recorded(tmp_path, steps=1, late=(2, 0)), OWN_WORK)
    series = heat_series(found, each(found))
    assert series.scale == (pytest.approx(12.0), pytest.approx(132.0))
    assert not series.exceeds_scale


def test_no_spike_is_lost_where_a_column_is_many_steps(tmp_path: Path) -> None:
    found = metric_of(recorded(tmp_path, steps=5 * MOST_COLUMNS + 3, late=(1, 777)), OWN_WORK)
    series = heat_series(found, each(found))
    assert len(series.steps) <= MOST_COLUMNS
    assert series.steps_per_column == 6
    column = 777 // 6
    assert series.milliseconds[1][column] == pytest.approx(122.0)
    assert series.places[1][column] == (1, 777)
    assert max(value or 0.0 for row in series.milliseconds for value in row) == pytest.approx(122.0)


def test_a_row_of_a_host_is_its_worst_rank(tmp_path: Path) -> None:
    found = metric_of(recorded(tmp_path), OWN_WORK)
    rows = heat.rows_by_host(found.ranks, {0: "a", 1: "b", 2: "a"})
    assert rows == {"a": [0, 2], "b": [1]}
    series = heat_series(found, rows)
    assert series.milliseconds == [pytest.approx([32.0, 32.0, 32.0, 132.0]), pytest.approx([22.0] * 4)]
    assert series.places[0][3] == (2, 3)
    assert heat.rows_by_host([0, 1], {1: "b"}) == {"unknown host": [0], "b": [1]}


def test_steps_without_detail_are_empty_and_only_measured_ones_count_if_asked(tmp_path: Path) -> None:
    for rank in range(2):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            writer.write(step_sample(0, measured=False, forward=0.5))
            writer.write(whole_step(1, forward=0.3))
            writer.write(step_sample(2, forward=0.2))
    assert RunRecords(tmp_path).ranks() == [0, 1]
    steps = {rank: Stream(tail(tmp_path / f"rank-{rank}.step")).refresh() for rank in range(2)}
    found = metric_of(steps, OWN_WORK)
    assert heat_series(found, each(found)).milliseconds[0] == [
        pytest.approx(500.0),
        None,
        pytest.approx(200.0),
    ]
    assert found.select_known().steps.tolist() == [0, 2]
    assert metric_of(steps, OWN_WORK, measured=True).select_known().steps.tolist() == [2]
    assert "no step was recorded in detail yet" in str(heat.heat(heat_series(metric_of({}, STEP), {})).layout)


def test_every_phase_is_a_metric(tmp_path: Path) -> None:
    steps = recorded(tmp_path)
    whole = metric_of(steps, STEP).seconds
    names = {name for name, fields in METRICS.items() if fields[0].removesuffix("_seconds") in PHASES} - {
        OWN_WORK
    }
    assert len(names) == len(PHASES)
    assert np.sum([metric_of(steps, name).seconds for name in names], axis=0) == pytest.approx(whole)
