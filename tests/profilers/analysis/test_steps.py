"""Ranks side by side, however uneven their records."""

from pathlib import Path

import pytest

from profilers.analysis.steps import JoinedSteps, Skew, join_steps, mean_phases, rank_skew, slowest_seconds
from profilers.records.reader import RunRecords
from profilers.records.schema import PHASES
from profilers.records.writer import RecordWriter
from tests.support.approximate import about
from tests.support.samples import step_sample, whole_step


def joined(folder: Path, *ranks: list[tuple[int, dict[str, float]]]) -> JoinedSteps:
    """Each rank's records as (step, values)."""
    for rank, records in enumerate(ranks):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            for step, values in records:
                writer.write(step_sample(step, **values))
    read = RunRecords(folder)
    return join_steps({rank: read.table(rank, "step") for rank in range(len(ranks))})


def forward(*seconds: float) -> list[tuple[int, dict[str, float]]]:
    """Steps from 0 on that are all forward."""
    return [(step, {"forward": value}) for step, value in enumerate(seconds)]


def test_ranks_are_rows_and_steps_are_columns(tmp_path: Path) -> None:
    steps = joined(tmp_path, forward(1.0, 2.0), forward(3.0, 4.0))
    assert (steps.ranks, steps.steps.tolist()) == ([0, 1], [0, 1])
    assert steps.values["step_seconds"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_a_step_that_a_rank_lacks_is_masked_and_not_measured(tmp_path: Path) -> None:
    steps = joined(tmp_path, forward(1.0, 2.0, 9.0), forward(3.0, 4.0))
    assert steps.values["step_seconds"].tolist() == [[1.0, 2.0, 9.0], [3.0, 4.0, None]]
    assert steps.select_measured().steps.tolist() == [0, 1]


def test_a_rank_without_records_is_no_row(tmp_path: Path) -> None:
    steps = joined(tmp_path, [], forward(1.0))
    assert (steps.ranks, steps.select_measured().steps.tolist()) == ([1], [0])


def test_warm_up_is_not_measured(tmp_path: Path) -> None:
    steps = joined(tmp_path, [(0, {"measured": False}), (1, {})])
    assert (steps.steps.tolist(), steps.select_measured().steps.tolist()) == ([0, 1], [1])


def test_a_step_recorded_twice_counts_as_the_later_one(tmp_path: Path) -> None:
    steps = joined(tmp_path, [(5, {"forward": 1.0}), (6, {"forward": 2.0}), (5, {"forward": 3.0})])
    assert steps.values["step_seconds"].tolist() == [[3.0, 2.0]]


def test_steps_in_detail_are_those_whose_phases_every_rank_recorded(tmp_path: Path) -> None:
    for rank, whole in enumerate(({1, 2}, {2, 3})):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            for step in range(5):
                writer.write((whole_step if step in whole else step_sample)(step, forward=0.1 * (step + 1)))
    read = RunRecords(tmp_path)
    steps = join_steps({rank: read.table(rank, "step") for rank in range(2)})
    assert steps.select_measured().steps.tolist() == [0, 1, 2, 3, 4]
    assert slowest_seconds(steps) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert steps.select_detailed().steps.tolist() == [0, 4]
    assert not steps.select_detailed().values["forward_seconds"].mask.any()


def test_no_rank_at_all() -> None:
    steps = join_steps({})
    assert (steps.ranks, len(steps.steps), len(steps.select_measured().steps)) == ([], 0, 0)


def test_a_step_lasts_as_long_as_its_slowest_rank(tmp_path: Path) -> None:
    steps = joined(tmp_path, forward(1.0, 5.0), forward(3.0, 4.0))
    assert slowest_seconds(steps).tolist() == [3.0, 5.0]


def test_phases_are_means_over_ranks_and_steps_rare_ones_included(tmp_path: Path) -> None:
    usual = {"forward": 0.4, "backward": 0.5, "bubble": 0.1}
    hiccup = {"forward": 0.4, "data": 9.0}
    quick = {"forward": 0.2, "optimizer": 0.2}
    steps = joined(tmp_path, [(0, usual), (1, usual), (2, hiccup)], [(0, quick), (1, quick), (2, quick)])
    phases = mean_phases(steps)
    assert list(phases) == list(PHASES)
    means = {"forward": 0.3, "backward": 1.0 / 6, "bubble": 0.2 / 6, "data": 9.0 / 6, "optimizer": 0.1}
    assert phases == about(dict.fromkeys(PHASES, 0.0) | means)
    assert sum(phases.values()) == about(steps.values["step_seconds"].mean())


def test_skew_is_looked_for_in_a_rank_s_own_work(tmp_path: Path) -> None:
    waits = {"forward": 0.6, "communication_exposed": 0.3, "bubble": 0.1}
    works = {"forward": 1.0}
    steps = joined(tmp_path, [(0, waits), (1, waits)], [(0, works), (1, works)])
    assert rank_skew(steps) == Skew(1, about(0.4), 1.0)


def test_the_busiest_rank_is_so_by_its_mean_and_its_share_of_steps_is_told(tmp_path: Path) -> None:
    steps = joined(tmp_path, forward(1.0, 1.0, 4.0), forward(1.5, 1.5, 1.0))
    assert rank_skew(steps) == Skew(0, about(2.0 / 3), about(1.0 / 3))


def test_one_rank_has_no_skew(tmp_path: Path) -> None:
    assert rank_skew(joined(tmp_path, forward(1.0, 2.0))) == Skew(0, 0.0, 1.0)
