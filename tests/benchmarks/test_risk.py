"""Calls of safe and refused: planted limits are found, and published failures are told from other model sizes."""

import numpy as np
import pytest

from benchmarks.published import frequencies, nanotron, playbook
from benchmarks.published.columns import cases
from benchmarks.published.memory import fullest
from benchmarks.published.peaks import fit_peaks
from benchmarks.published.risk import calls, fit_risk, scores
from tuning.predict.model.cases import Cases

GIB = 2**30


def _many(count: int) -> Cases:
    return Cases.from_columns(
        layers=np.full(count, 8), hidden=1024, heads=8, vocabulary=1000, sequence=128, micro_batch=1,
        micro_batches=4, dp=np.where(np.arange(count) % 4 == 0, 2, 1), pp=2,
    )  # fmt: skip


def test_a_planted_limit_and_planted_faults_are_found() -> None:
    random_ = np.random.default_rng(1)
    own, bytes_ = _many(4000), random_.uniform(10, 120, 4000) * GIB
    chance = 1 / (1 + (70 * GIB / bytes_) ** (1 / 0.05))
    faults = np.where(own.dp > 1, 0.4, 0.01)
    failed = (random_.random(4000) < chance) | (random_.random(4000) < faults)
    risk = fit_risk(own, bytes_, np.zeros(4000, np.bool_), failed)
    assert risk.limit_bytes == pytest.approx(70 * GIB, rel=0.05)
    assert 0.02 < risk.width < 0.1
    fails = risk.fails(own, np.full(4000, 10.0 * GIB), np.zeros(4000, np.bool_))
    assert fails[own.dp > 1].mean() == pytest.approx(0.4, abs=0.06)
    assert fails[own.dp == 1].mean() == pytest.approx(0.01, abs=0.01)


def test_what_is_refused_is_certain_and_says_nothing_of_memory() -> None:
    own, bytes_ = _many(200), np.linspace(10, 100, 200) * GIB
    refused = np.arange(200) % 2 == 0
    failed = refused | (bytes_ > 60 * GIB)
    risk = fit_risk(own, bytes_, refused, failed)
    assert (risk.fails(own, bytes_, refused)[refused] == 1).all()
    assert risk.limit_bytes == pytest.approx(60 * GIB, rel=0.05)


def test_without_a_trial_that_ran_there_is_no_risk() -> None:
    with pytest.raises(ValueError, match="trials that ran"):
        fit_risk(_many(4), np.full(4, 1.0 * GIB), np.zeros(4, np.bool_), np.ones(4, np.bool_))


def test_an_estimate_says_how_full_and_how_sure() -> None:
    own, bytes_ = _many(400), np.linspace(10, 100, 400) * GIB
    risk = fit_risk(own, bytes_, np.zeros(400, np.bool_), bytes_ > 60 * GIB)
    said = risk.estimate(0.5 * risk.limit_bytes, 0.04)
    assert str(said) == "50% +- 3% of the card, probability of out-of-memory 0%"
    assert risk.estimate(risk.limit_bytes, 0.04).out_of_memory == pytest.approx(0.5)


def test_calls_and_their_scores() -> None:
    fails = np.array([0.01, 0.04, 0.5, 0.97, 1.0])
    assert calls(fails, 0.95).tolist() == ["safe", "safe", "unsure", "refused", "refused"]
    one = scores(fails, np.array([False, True, True, True, False]), (0.95,))[0]
    assert one.called == pytest.approx(0.8)
    assert one.safe_failed == pytest.approx(0.5)
    assert one.refused_ran == pytest.approx(0.5)


def test_frequencies_of_few_trials_are_drawn_to_those_of_more() -> None:
    keys = np.array([[0, 0]] * 50 + [[0, 1]] + [[1, 0]] * 50, np.int64)
    happened = np.array([1.0] * 50 + [0.0] + [0.0] * 50)
    told = frequencies.learn(keys, happened)
    often, rare, never, unseen = told.of(np.array([[0, 0], [0, 1], [1, 0], [2, 2]], np.int64))
    assert often > 0.95 > rare > 0.5 > never
    assert unseen == pytest.approx(50 / 101)
    with pytest.raises(ValueError, match="known"):
        frequencies.learn(keys, np.full(len(keys), np.nan))


def test_a_count_that_no_trial_had_is_taken_for_the_next_smaller_one() -> None:
    keys = np.array([[0, 2]] * 30 + [[0, 4]] * 30 + [[1, 2]] * 30, np.int64)
    happened = np.repeat([0.0, 1.0, 0.0], 30)
    asked = np.array([[0, 1], [0, 2], [0, 3], [0, 4], [0, 9], [1, 9]], np.int64)
    below, two, three, four, more, other = frequencies.learn(keys, happened, (1,)).of(asked)
    assert two == three and four == more
    assert two < 0.1 and four > 0.9
    assert two < below < four  # nothing smaller was seen: as of all with its first key
    assert other < 0.1
    assert (frequencies.learn(keys, happened).of(asked)[[0, 2, 4]] == below).all()


def test_what_nanotron_refuses_never_ran() -> None:
    trials = playbook.trials()
    refused = nanotron.refuses(cases(trials))
    assert refused.sum() > 200
    assert trials["failed"][refused].mean() > 0.99


def test_nanotron_deals_by_cost() -> None:
    even = nanotron.deal(16, 1.0, 0.0, 4)
    assert even.layers == (4, 4, 4, 4)
    heavy = nanotron.deal(16, 1.0, 4.0, 4)
    assert heavy.layers == (5, 5, 5, 1)
    assert heavy.head == heavy.loss == 3
    assert nanotron.deal(16, 1.0, 4.0, 16).loss < 15


def test_playbook_failures_are_told_by_other_sizes() -> None:
    trials = playbook.trials()
    own, models, failed = nanotron.dealt(cases(trials)), trials["model"], trials["failed"]
    refused, fails = nanotron.refuses(own), np.zeros(len(failed))
    for model in dict.fromkeys(models.tolist()):
        out = models == model
        peaks = fit_peaks(own.take(~out & ~failed), trials["memory_bytes"][~out & ~failed])
        most = fullest(own, peaks.constants)
        risk = fit_risk(own.take(~out), most[~out], refused[~out], failed[~out])
        fails[out] = risk.fails(own.take(out), most[out], refused[out])
    found = scores(fails, failed, (0.95,))[0]
    assert found.called > 0.8
    assert found.safe_failed < 0.05
    assert found.refused_ran < 0.05
