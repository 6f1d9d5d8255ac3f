"""Intervals that hold after every round: beside the Bayes factor as an integral, on random walks, and in words."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from profilers.analysis.statistics import Interval
from tests.support.drawn import SEED
from tuning.analysis.paired_comparison import EFFECT, Lead, fewest, lead, reach, verdict


@pytest.mark.parametrize(("rounds", "error"), [(5, 0.05), (8, 0.05 / 3), (30, 0.05), (120, 0.025)])
def test_the_end_of_the_interval_is_where_the_bet_wins(rounds: int, error: float) -> None:
    """The Bayes factor as an integral of noncentral t densities over effect sizes, by scipy."""
    score = reach(rounds, error) * math.sqrt(rounds)

    def bet(effect: float) -> float:
        shifted = stats.nct.pdf(score, rounds - 1, effect * math.sqrt(rounds))
        return float(shifted * stats.norm.pdf(effect, scale=math.sqrt(EFFECT)))

    won, _ = integrate.quad(bet, -6, 6, limit=400, points=[0.0, score / math.sqrt(rounds)])
    assert won / stats.t.pdf(score, rounds - 1) == pytest.approx(1 / error, rel=1e-3)


def test_too_few_rounds_tell_nothing() -> None:
    assert math.isinf(reach(1, 0.05))
    assert math.isinf(reach(3, 0.05))
    assert math.isfinite(reach(5, 0.05))


def test_looking_after_every_round_is_wrong_no_more_often_than_said() -> None:
    """Of 2,000 walks of 150 rounds: how many ever leave the truth out. The bar is 5 % and three standard errors; a t
    interval of each round leaves it out in every third walk.
    """
    walks, length = 2000, 150
    draw = np.random.default_rng(SEED).normal(0.01, 0.04, (walks, length))
    counts = np.arange(1, length + 1)
    means = draw.cumsum(axis=1) / counts
    squares = (draw**2).cumsum(axis=1) - counts * means**2
    deviations = np.sqrt(squares[:, 4:] / (counts[4:] - 1))
    away = np.abs(means[:, 4:] - 0.01)
    reached = np.array([reach(int(count), 0.05) for count in counts[4:]])
    wrong = (away > reached * deviations).any(axis=1).mean()
    ordinary = stats.t.ppf(0.975, counts[4:] - 1) / np.sqrt(counts[4:])
    assert wrong <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / walks)
    assert (away > ordinary * deviations).any(axis=1).mean() > 0.2


def test_a_drift_that_both_share_does_not_count() -> None:
    drift = [0.1 * place for place in range(12)]
    wiggle = np.random.default_rng(1).normal(0, 0.002, 24)
    one = {place: 0.05 + drift[place] + wiggle[2 * place] for place in range(12)}
    other = {place: drift[place] + wiggle[2 * place + 1] for place in range(12)}
    found = lead(one, other, 0.05)
    assert found.rounds == 12
    assert found.verdict(0.03) == "better"
    assert found.interval.low is not None
    assert 1.04 < found.interval.low < math.exp(0.05) < (found.interval.high or 0) < 1.06


def test_only_rounds_that_both_had_count() -> None:
    found = lead({0: 1.0, 1: 1.1, 2: 1.0}, {1: 1.0, 2: 0.9, 5: 7.0}, 0.05)
    assert (found.rounds, found.middle) == (2, pytest.approx(0.1))
    assert found.verdict(0.03) == "undecided"
    assert lead({0: 1.0}, {0: 0.5}, 0.05).verdict(0.03) == "undecided"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.01, 1.09, "better"),
        (0.9, 0.99, "worse"),
        (0.98, 1.02, "equal"),
        (1.005, 1.02, "equal"),
        (0.98, 1.04, "undecided"),
        (None, None, "undecided"),
    ],
)
def test_what_an_interval_says(low: float | None, high: float | None, expected: str) -> None:
    assert verdict(Interval(1.0, low, high), 0.03) == expected


def test_without_a_margin_nothing_is_equal() -> None:
    assert verdict(Interval(1.0, 0.999, 1.001), 0.0) == "undecided"


@pytest.mark.parametrize("middle", [0.0, 0.015, 0.05, -0.05])
def test_the_forecast_of_rounds_is_when_it_is_decided(middle: float) -> None:
    """A study that goes on with the same difference and noise is decided then, and not a fifth earlier."""
    deviation, rounds = 0.04, 10

    def after(count: int) -> Lead:
        return Lead(count, middle, deviation, reach(count, 0.05) * deviation, 0.05)

    more = after(rounds).more_rounds(0.03)
    assert more is not None
    assert after(rounds + more).verdict(0.03) != "undecided"
    assert after(rounds + int(0.8 * more)).verdict(0.03) == "undecided" or more < 5


@pytest.mark.parametrize("rounds", [2, 5, 40])
@pytest.mark.parametrize("effect", [-0.4, 0.1, 0.9])
def test_how_likely_the_leader_is_ahead_by_the_interval_s_own_bet(rounds: int, effect: float) -> None:
    """The part above 0 of the likelihoods of all effect sizes, each weighted as the interval bets on it."""
    values = {place: 0.03 * (effect + (-1) ** place) for place in range(rounds)}
    ahead = lead(values, dict.fromkeys(values, 0.0), 0.05)
    score = float(stats.ttest_1samp(list(values.values()), 0.0).statistic)

    def weighed(size: float) -> float:
        likelihood = stats.nct.pdf(score, rounds - 1, size * math.sqrt(rounds))
        return float(likelihood * stats.norm.pdf(size, scale=math.sqrt(EFFECT)))

    above, below = (integrate.quad(weighed, *ends)[0] for ends in ((0, 8), (-8, 0)))
    assert ahead.probability == pytest.approx(above / (above + below), abs=1e-5)


def test_where_rounds_say_nothing_or_all_the_same() -> None:
    assert lead({0: 0.0, 1: 0.0}, {0: 0.0, 1: 0.0}, 0.05).probability == 0.5
    assert lead({0: 0.5}, {0: 0.0}, 0.05).probability is None
    alike = [
        lead(dict.fromkeys(range(count), 0.1), dict.fromkeys(range(count), 0.0), 0.05) for count in (2, 9)
    ]
    few, many = (one.probability or 0.0 for one in alike)
    assert 0.9 < few < 0.95 and many > 0.9999
    assert fewest(0.05) == 5 and alike[0].interval.low is None


def test_a_decided_lead_is_likely() -> None:
    """Where an interval just leaves 1 the probability is no less than its level."""
    for rounds in (5, 12, 100):
        decided = Lead(rounds, reach(rounds, 0.05) * 0.02, 0.02, reach(rounds, 0.05) * 0.02, 0.05)
        assert (decided.probability or 0.0) > 0.97
