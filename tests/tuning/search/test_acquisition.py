"""What a study tries first: biased, wrong and hopeless predictions, and what it makes of its own trials."""

import time
from collections.abc import Callable

import numpy as np
import pytest

from tuning.search.acquisition import explain_infeasibility, propose, skipped_candidates
from tuning.search.surrogate import Observations, Prior, posterior, prediction_errors

Measure = Callable[[int], float]
NAN = float("nan")


def grid(seed: int = 0, risk: float = 0.01, spread: float = 0.1) -> tuple[Prior, np.ndarray]:
    """120 candidates of three axes, and log seconds as they are: predictions off by 0.1 each."""
    places = (
        np.stack(np.meshgrid(range(6), range(5), range(4), indexing="ij"), axis=-1)
        .reshape(-1, 3)
        .astype(float)
    )
    truth = 0.3 * np.abs(places - [3, 1, 2]).sum(axis=1)
    off = np.random.default_rng(seed).normal(0, 0.1, len(truth))
    return Prior.from_columns(places, truth + off, spread, risk), truth


def play(prior: Prior, measure: Measure, trials: int) -> Observations:
    rows: list[int] = []
    values: list[float] = []
    for _ in range(trials):
        proposal = propose(prior, Observations.from_lists(rows, values))
        if proposal is None:
            break
        assert proposal.row not in rows, "proposed twice"
        rows.append(proposal.row)
        values.append(measure(proposal.row))
    return Observations.from_lists(rows, values)


def test_without_trials_the_best_prediction_is_first() -> None:
    prior, _ = grid()
    proposal = propose(prior, Observations.from_lists([], []))
    assert proposal is not None
    assert proposal.row == int(np.argmin(prior.log_seconds))
    assert "best prediction" in proposal.why


@pytest.mark.parametrize("bias", [-1.0, 0.0, 1.0])
def test_a_common_bias_does_not_hide_the_best(bias: float) -> None:
    for seed in range(5):
        prior, truth = grid(seed)
        seen = play(prior, lambda row: float(truth[row] + bias), 10)  # noqa: B023
        assert truth[seen.rows].min() == 0
        found = posterior(prior, seen)
        assert found.bias == pytest.approx(bias, abs=0.15)


def test_intervals_widen_when_predictions_are_off() -> None:
    prior, truth = grid()
    random = np.random.default_rng(1)
    wild = truth + random.normal(0, 0.8, len(truth))
    calm = posterior(prior, play(prior, lambda row: float(truth[row]), 8))
    wide = posterior(prior, play(prior, lambda row: float(wild[row]), 8))
    assert wide.scale > 2 * calm.scale
    told = prediction_errors(prior, play(prior, lambda row: float(wild[row]), 8))
    assert told.scale == pytest.approx(wide.scale)
    assert told.within < 0.9


def test_neighbours_share_what_is_wrong() -> None:
    """Half of all candidates are twice as slow as predicted, those with the third axis below 2."""
    prior, _ = grid(spread=0.4)
    off = np.where(prior.features[:, 2] < 2, 0.7, 0.0)
    rows = [0, 2, 40, 42]
    found = posterior(
        prior, Observations.from_lists(rows, [float((prior.log_seconds + off)[row]) for row in rows])
    )
    moved = found.fast - prior.log_seconds
    near_slow = moved[(prior.features == [0, 0, 0]).all(axis=1)][0]
    near_fast = moved[(prior.features == [0, 0, 3]).all(axis=1)][0]
    assert near_slow > near_fast + 0.2


def test_a_wrong_risk_recovers() -> None:
    """Everything was called risky and runs: risks fall; everything was called safe and fails: they rise."""
    prior, truth = grid(risk=0.6)
    seen = play(prior, lambda row: float(truth[row]), 6)
    assert posterior(prior, seen).fails.mean() < 0.2
    assert prediction_errors(prior, seen).risky_ran == 6
    prior, _ = grid(risk=0.1)
    seen = play(prior, lambda _: NAN, 6)
    assert posterior(prior, seen).fails.mean() > 0.6
    assert prediction_errors(prior, seen).safe_failed == 6


def test_a_predicted_failure_gets_a_second_look_when_nothing_else_is_left() -> None:
    prior = Prior.from_columns(
        np.zeros((3, 1)), np.array([0.0, 1.0, 2.0]), 0.1, np.array([0.99, 0.01, 0.999])
    )
    assert set(skipped_candidates(prior, Observations.from_lists([], []))) == {0, 2}
    seen = play(prior, lambda row: NAN if row else 0.0, 3)
    assert seen.rows.tolist() == [1, 0, 2]
    last = propose(prior, Observations.from_lists([1], [NAN]))
    assert last is not None
    assert "second look" in last.why
    assert propose(prior, seen) is None


def test_a_sure_gain_is_worth_a_risk_and_a_small_one_is_not() -> None:
    for ahead, chosen in [(0.7, 1), (0.01, 2)]:
        prior = Prior.from_columns(
            np.zeros((3, 1)), np.array([0.0, -ahead, 0.0]), 0.01, np.array([0.01, 0.6, 0.01])
        )
        proposal = propose(prior, Observations.from_lists([0], [0.0]))
        assert proposal is not None
        assert proposal.row == chosen


def test_slow_runs_are_told_apart_and_teach_of_those_alike() -> None:
    places = np.repeat([[0.0], [9.0]], 3, axis=0)
    prior = Prior.from_columns(places, np.zeros(6), 0.05, 0.01, slower=1.0, slow_chance=0.5)
    found = posterior(prior, Observations.from_lists([0, 1], [1.02, 0.98]))
    assert found.slow_chance[2] > found.slow_chance[5] + 0.03 > 0.7
    assert abs(found.fast[2]) < 0.1
    proposal = propose(prior, Observations.from_lists([0, 1], [1.02, 0.98]))
    assert proposal is not None
    assert proposal.row > 2


def test_where_nothing_runs_it_says_so_within_twelve() -> None:
    places = np.arange(40.0)[:, None]
    prior = Prior.from_columns(places, np.zeros(40), 0.1, 0.995, refusals=("by rule",) * 10 + ("",) * 30)
    rows: list[int] = []
    while not (reason := explain_infeasibility(prior, Observations.from_lists(rows, [NAN] * len(rows)))):
        proposal = propose(prior, Observations.from_lists(rows, [NAN] * len(rows)))
        assert proposal is not None
        rows.append(proposal.row)
        assert len(rows) <= 12
    assert len(rows) == 12
    assert "nothing ran in 12 trials" in reason
    assert "30 were predicted to need too much memory" in reason
    assert "10 are refused: by rule" in reason


def test_where_nothing_can_run_three_trials_are_enough() -> None:
    prior = Prior.from_columns(
        np.arange(40.0)[:, None], np.zeros(40), 0.1, 1 - 1e-6, fills=np.linspace(1.7, 4, 40)
    )
    assert explain_infeasibility(prior, Observations.from_lists([0, 1], [NAN] * 2)) == ""
    reason = explain_infeasibility(prior, Observations.from_lists([0, 1, 2], [NAN] * 3))
    assert "nothing runs: all 3 trials failed" in reason
    assert "the smallest 170% of what a device can hold" in reason
    assert (
        skipped_candidates(prior, Observations.from_lists([0], [NAN]))[39]
        == "needs 400% of what a device can hold, probability to fail 100%"
    )


def test_it_does_not_give_up_where_something_may_run() -> None:
    prior = Prior.from_columns(np.zeros((30, 1)), np.zeros(30), 0.1, np.array([0.99] * 29 + [0.3]))
    assert explain_infeasibility(prior, Observations.from_lists([0, 1, 2, 3], [NAN] * 4)) == ""
    assert explain_infeasibility(prior, Observations.from_lists([0, 1, 2, 29], [NAN, NAN, NAN, 0.0])) == ""


def test_columns_must_fit() -> None:
    with pytest.raises(ValueError, match="every column"):
        Prior.from_columns(np.zeros((2, 1)), np.array([0.0, NAN]), 0.1, 0.1)
    with pytest.raises(ValueError, match="every column"):
        Prior.from_columns(np.zeros((2, 1)), np.zeros(2), 0.1, 0.1, refusals=("",))


def test_ten_thousand_candidates_are_proposed_from_in_time() -> None:
    random = np.random.default_rng(0)
    prior = Prior.from_columns(
        random.normal(size=(10_000, 6)), random.normal(size=10_000), 0.1, random.uniform(size=10_000)
    )
    seen = Observations.from_lists(list(range(12)), random.normal(size=12).tolist())
    best = min(_seconds(lambda: propose(prior, seen)) for _ in range(5))
    assert best < 0.25, "50 ms on an idle machine; five times that on a busy one"


def _seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def test_who_is_alike_in_being_slow_may_differ_from_who_is_alike_in_errors() -> None:
    """One candidate beside the tried one in errors, another in slowness; each learns what it is alike in."""
    errors, slowness = np.array([[0.0], [0.0], [9.0]]), np.array([[0.0], [9.0], [0.0]])
    prior = Prior.from_columns(
        errors, np.zeros(3), 0.2, 0.01, slow_features=slowness, slower=2.0, slow_chance=0.5
    )
    found = posterior(prior, Observations.from_lists([0], [2.3]))
    assert found.slow_chance[0] == found.slow_chance[2] > found.slow_chance[1] + 0.05
    assert found.fast[1] > found.fast[2] + 0.05
    same = posterior(
        Prior.from_columns(errors, np.zeros(3), 0.2, 0.01, slower=2.0, slow_chance=0.5),
        Observations.from_lists([0], [2.3]),
    )
    assert same.slow_chance[0] == same.slow_chance[1] > same.slow_chance[2] + 0.05


def test_a_study_whose_runs_are_all_slow_or_never_moves_all_chances_that_are_not_nothing() -> None:
    places, chances = np.arange(0.0, 90.0, 9.0)[:, None], np.array([0.1] * 9 + [0.0])
    prior = Prior.from_columns(places, np.zeros(10), 0.05, 0.01, slower=1.0, slow_chance=chances)
    believed = posterior(prior, Observations.from_lists([], [])).slow_chance
    slow = posterior(prior, Observations.from_lists([0, 1, 2, 3], [1.0] * 4)).slow_chance
    fast = posterior(prior, Observations.from_lists([0, 1, 2, 3], [0.0] * 4)).slow_chance
    assert slow[8] > 0.75
    assert 0.3 > believed[8] > 2 * fast[8] > 0
    assert slow[9] == fast[9] == believed[9] == 0
