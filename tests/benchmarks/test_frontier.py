"""The Frontier paper's figures: how they are counted, what is left out of a fit, and what the examples hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks import _frontier as frontier
from benchmarks import frontier_search as search
from benchmarks import prediction_frontier as prediction
from engine.config.validation.rules import check
from tuning.predict import target
from tuning.predict.cluster import catalogue
from tuning.predict.fit import device_constants
from tuning.predict.model.cases import Cases

MODELS = tuple(search.FILES)


@pytest.fixture(scope="module")
def trials() -> frontier.Trials:
    return frontier.trials()


def test_flops_are_counted_as_the_authors_logger_counts_them() -> None:
    log = Cases.from_columns(layers=96, hidden=12288, heads=96, vocabulary=51200, sequence=2048, micro_batch=1,
                   micro_batches=640, dp=2, tp=4, pp=16)  # fmt: skip
    rate = frontier.counted_flops(log)[0] / 196.5 / 128 / 1e12
    assert rate == pytest.approx(149.46, rel=1e-3)
    assert log.model_flops[0] / 196.5 / 128 / 1e12 < 115


def test_seconds_are_those_of_the_percentages(trials: frontier.Trials) -> None:
    percent = frontier.of_peak(trials.measured.cases, trials.measured.seconds)
    assert dict(zip(trials.models, percent, strict=True)) == pytest.approx(frontier.figures("pct_of_peak"))


def test_a_figure_has_no_part_in_its_own_prediction(trials: frontier.Trials) -> None:
    rows = trials.measured
    spoiled = frontier.Trials(trials.models, rows._replace(seconds=rows.seconds * np.array([2.0, 1.0, 1.0])))
    before, after = frontier.left_out(trials), frontier.left_out(spoiled)
    assert after[0] == pytest.approx(before[0] - np.log(2.0))
    assert not np.allclose(after[1:], before[1:], atol=0.01)


def test_each_figure_is_predicted_from_the_other_two_within_ten_percent(trials: frontier.Trials) -> None:
    errors = frontier.left_out(trials)
    assert np.abs(np.expm1(-errors)).max() < 0.10
    width = np.expm1(frontier.half_width(errors))
    assert np.abs(np.expm1(errors)).max() < width < 0.10


def test_the_width_is_students_t_of_the_errors() -> None:
    assert frontier.half_width(np.array([0.03, -0.03])) == pytest.approx(2.920 * 0.03, rel=1e-3)
    assert frontier.half_width(np.array([0.0, 0.0, 0.06])) == pytest.approx(2.353 * 0.06 / 3**0.5, rel=1e-3)


def test_what_ships_is_what_is_fitted_and_what_a_target_answers_with(trials: frontier.Trials) -> None:
    found, kept = frontier.calibrated(trials), device_constants.find_constants("mi250x-gcd")
    assert kept is not None
    assert asdict(kept.constants) == pytest.approx(asdict(found.constants), rel=1e-3)
    assert (kept.low, kept.high) == pytest.approx((found.low, found.high), rel=1e-3)
    assert (kept.ranges, kept.trials) == (found.ranges, 3)
    here = target.cluster_target(catalogue.cluster("frontier", 2))
    assert here.calibrated == kept
    assert here.unsure == 0.0
    assert "prediction_frontier" in here.constants_source
    assert any("3 published figures" in note for note in here.notes)


def test_strong_scaling_is_within_ten_points_where_weak_scaling_ends(trials: frontier.Trials) -> None:
    known = frontier.calibrated(trials).constants
    rows = {(row[0], row[1], row[2].partition(", ")[2]): row for row in prediction.scaling(trials, known)}
    for name in ("175B", "1T"):
        assert abs(int(rows[name, "strong", "as weak scaling ends"][-1])) <= 10
        assert abs(int(rows[name, "weak", ""][-1])) <= 10
        scripts = rows[name, "strong", "the script's"]
        assert float(scripts[5].rstrip("%")) < float(scripts[6].rstrip(" %")) - 10


def keys() -> Iterator[tuple[str, str]]:
    for model in MODELS:
        for key in search.example(model).space:
            yield model, key


@pytest.mark.parametrize(("model", "key"), list(keys()))
def test_an_example_holds_what_the_authors_ran(model: str, key: str) -> None:
    assert search.published(model)[key] in search.example(model).space[key]


@pytest.mark.parametrize("model", MODELS)
def test_the_authors_layout_is_a_legal_point_that_fits(model: str) -> None:
    file, point = search.example(model), search.published(model)
    space = file.search_space
    assert space.why_outside(point) is None
    config, names = space.config(point), frontier.layouts()
    row = names[0].index(model)
    assert check(config).world_size == point["ranks"] == names[1].world[row]
    assert config.batch.global_batch == names[1].global_batch[row]
    assert config.data.sequence_length == names[1].sequence[row]
    found = search.foreseen(file, point)
    assert found.out_of_memory_probability < 0.05
    ends = [4 / 3 * found.mfu * found.step_seconds.median / one for one in found.step_seconds]
    assert ends[2] < frontier.figures("pct_of_peak")[model] / 100 < ends[1]


def test_searches_are_kept_until_the_formulas_change(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    kept = search.Kept(path, "one")
    assert kept.lines("22B, seed 0", None) == []
    assert kept.lines("22B, seed 0", lambda: [["22B", "0"]]) == [["22B", "0"]]
    again = search.Kept(path, "one")
    assert again.lines("22B, seed 0", lambda: [["made", "anew"]]) == [["22B", "0"]]
    assert search.Kept(path, "other").lines("22B, seed 0", None) == []
