"""The benchmark of several objectives: what a front is worth, and what is told of searches."""

import pytest

from benchmarks import _several, samplers_several
from benchmarks import _several_scores as tables
from benchmarks._several import Problem
from tests.support.studies.fake import study
from tuning.space.points import point_key


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Four points that run and one that fails: three are a front."""
    file = study(objectives=["tokens_per_second", "peak_memory_bytes"])
    keys = [point_key(point) for point in file.search_space.legal_points[:5]]
    values = [(4.0, 4.0), (3.0, 2.0), (1.0, 1.0), (0.0, 5.0), None]
    return Problem("known", file.search_space, file.aims, dict(zip(keys, values, strict=True)))


def test_a_front_is_worth_its_share_of_the_best_hypervolume(problem: Problem) -> None:
    """Speeds lie between 0 and 4, memory between 5 and 1; the reference is the slowest with the most memory."""
    second, third, worst, failed = list(problem.values)[1:]
    whole = 1 / 4 * 4 / 4 + 2 / 4 * 3 / 4 + 1 / 4 * 1 / 4
    assert problem.best == pytest.approx(whole)
    assert problem.score(problem.values) == pytest.approx(1)
    assert problem.score([second, worst]) == pytest.approx(3 / 4 * 3 / 4 / whole)
    assert problem.score([second, third]) == pytest.approx((1 / 4 + 2 / 4 * 3 / 4) / whole)
    assert problem.score([worst, failed]) == 0
    assert problem.failing == pytest.approx(1 / 5)
    assert len(problem.unknown) == len(problem.space.legal_points) - 5


def test_a_recorded_cell_has_both_values_of_what_ran() -> None:
    problem = _several.recorded("80B", 4)
    ran = [values for values in problem.values.values() if values is not None]
    assert (len(problem.values), len(ran)) == (118, 4)
    assert all(speed > 1e3 and 1e9 < memory < 1e11 for speed, memory in ran)


@pytest.mark.parametrize("method", sorted({*samplers_several.METHODS} - samplers_several.HANDED.keys()))
def test_a_search_measures_known_points_once(method: str) -> None:
    problem = _several.recorded("1B", 64)
    found = samplers_several.Search(problem, method, 1, 24).run()
    assert len(found.keys) == len(set(found.keys)) == 24
    assert set(found.keys) <= problem.values.keys()
    scores = found.scores([12, 24])
    assert 0 < scores[12]["score"] <= scores[24]["score"] <= 1


def test_pairs_are_of_one_problem_seed_and_budget() -> None:
    kept = {
        tables.key("recorded a", "one", 0, 20): {"score": 0.75},
        tables.key("recorded a", "other", 0, 20): {"score": 0.5},
        tables.key("recorded a", "one", 1, 20): {"score": 0.1},
        tables.key("made up", "one", 0, 20): {"score": 0.1},
        tables.key("made up", "other", 0, 50): {"score": 0.9},
    }
    ((group, budget, pairs, median, mean, counts),) = tables.ahead(kept, "one", "other")
    assert (group, budget, pairs, counts) == ("recorded", "20", "1", "1, 0, 0")
    assert median == "+0.250 (+0.250 to +0.250)" and mean == "+0.250"
