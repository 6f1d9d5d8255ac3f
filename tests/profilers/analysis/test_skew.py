"""Fixed, rotating and one-off skew are told apart: planted stragglers of each kind, in made-up noise."""

from math import comb
from typing import Any

import numpy as np
import pytest

from profilers.analysis.statistics import chance, high_outliers
from profilers.analysis.steps import skew_row
from profilers.model.rows import FIXED, ONE_OFF, ROTATING, SkewRow
from tests.support.approximate import about

RANKS, STEPS = 8, 200
Seconds = np.ndarray[Any, np.dtype[np.float64]]


def noise(seed: int, ranks: int = RANKS, steps: int = STEPS) -> Seconds:
    """Steps of 100 ms, give or take 1 ms."""
    return np.random.default_rng(seed).normal(0.1, 0.001, (ranks, steps))


def told(seconds: Seconds) -> SkewRow:
    """Ranks are numbered from 10 on and steps from 1000 on, so that rows and numbers are not confused."""
    ranks, steps = seconds.shape
    found = skew_row(seconds, range(10, 10 + ranks), range(1000, 1000 + steps))
    assert found is not None
    assert found.fixed_seconds + found.rotating_seconds + found.one_off_seconds == about(found.seconds)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_that_is_always_slower_is_fixed(seed: int) -> None:
    seconds = noise(seed)
    seconds[3] += 0.02
    found = told(seconds)
    assert (found.kind, found.ranks, found.ranks_share) == (FIXED, [13], 1.0)
    assert found.seconds == pytest.approx(0.02, abs=0.001)
    assert found.fixed_seconds == about(found.seconds)


@pytest.mark.parametrize("seed", range(5))
def test_another_rank_each_time_is_rotating(seed: int) -> None:
    seconds = noise(seed)
    seconds[np.random.default_rng(seed).integers(RANKS, size=STEPS), np.arange(STEPS)] += 0.02
    found = told(seconds)
    assert (found.kind, found.ranks) == (ROTATING, [])
    assert found.rotating_seconds > 0.9 * found.seconds


@pytest.mark.parametrize("seed", range(5))
def test_a_few_steps_that_stand_out_are_one_off(seed: int) -> None:
    seconds = noise(seed)
    for row, step, late in ((2, 50, 0.5), (5, 120, 0.8), (2, 121, 0.3)):
        seconds[row, step] += late
    found = told(seconds)
    assert found.kind == ONE_OFF
    assert found.late_steps == 3, "the odd one of the noise is not far enough above"
    assert [(one.step, one.rank) for one in found.latest] == [(1120, 15), (1050, 12), (1121, 12)]
    assert found.one_off_seconds == pytest.approx((0.5 + 0.8 + 0.3) / STEPS, rel=0.02)
    assert found.latest[0].seconds == pytest.approx(0.8, rel=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_one_late_step_of_few_is_one_off(seed: int) -> None:
    """Of 16 steps two can be outliers of the noise already, which would be more than a tenth."""
    seconds = noise(seed, ranks=4, steps=16)
    seconds[2, 12] += 0.08
    found = told(seconds)
    assert (found.kind, found.late_steps, found.latest[0].step) == (ONE_OFF, 1, 1012)


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_names_no_rank(seed: int) -> None:
    """Somebody is the busiest most often; that is chance."""
    found = told(noise(seed))
    assert (found.kind, found.ranks) == (ROTATING, [])


def test_one_rank_that_is_slow_in_a_third_of_the_steps_is_fixed() -> None:
    """It is no exception any more, and no other rank is like it."""
    seconds = noise(0)
    seconds[6, ::3] += 0.05
    found = told(seconds)
    assert (found.kind, found.ranks) == (FIXED, [16])
    assert found.one_off_seconds == 0


def test_two_ranks_of_a_slow_host_are_both_named() -> None:
    seconds = noise(1)
    seconds[4:6] += 0.02
    found = told(seconds)
    assert (found.kind, sorted(found.ranks), found.ranks_share) == (FIXED, [14, 15], 1.0)


def test_two_ranks_of_which_one_is_slower() -> None:
    seconds = noise(2, ranks=2)
    seconds[1] += 0.02
    assert (told(seconds).kind, told(seconds).ranks) == (FIXED, [11])


@pytest.mark.parametrize("kind", [FIXED, ROTATING, ONE_OFF])
def test_the_largest_part_of_a_mixture_is_its_kind(kind: str) -> None:
    large, small = 0.08, 0.02
    seconds, drawn = noise(3), np.random.default_rng(4)
    seconds[0] += large if kind == FIXED else 0.0
    seconds[drawn.integers(RANKS, size=STEPS), np.arange(STEPS)] += large if kind == ROTATING else small
    seconds[1, 10] += STEPS * (large if kind == ONE_OFF else small / 10)
    assert told(seconds).kind == kind


@pytest.mark.parametrize(("steps", "ranks"), [(3, []), (4, [13])])
def test_too_few_steps_prove_nothing(steps: int, ranks: list[int]) -> None:
    """Of 8 ranks one is always the last by chance with a probability of 8 / 8^3 = 1.6 %, and 0.2 % in 4 steps."""
    seconds = noise(0, steps=steps)
    seconds[3] += 0.02
    assert told(seconds).ranks == ranks


def test_nobody_is_behind_where_there_is_nobody_else() -> None:
    assert skew_row(noise(0, ranks=1), [0], range(STEPS)) is None
    assert skew_row(np.ones((4, 20)), range(4), range(20)) is None
    assert skew_row(np.ones((4, 0)), range(4), []) is None


@pytest.mark.parametrize(
    ("count", "tries", "probability"), [(0, 5, 0.5), (3, 5, 0.5), (5, 5, 0.125), (40, 60, 0.5)]
)
def test_chance_is_the_upper_tail_of_the_binomial_distribution(
    count: int, tries: int, probability: float
) -> None:
    by_hand = sum(
        comb(tries, n) * probability**n * (1 - probability) ** (tries - n) for n in range(count, tries + 1)
    )
    assert chance(count, tries, probability) == pytest.approx(by_hand, rel=1e-9)


def test_chance_of_very_many_tries() -> None:
    assert chance(50_500, 100_000, 0.5) == pytest.approx(0.000788, rel=0.01)  # 3.16 deviations of 158.1


def test_a_value_is_far_above_by_the_modified_score() -> None:
    """Median 3, deviations 2, 1, 0, 1, 2, 97: MAD 1.5; 3 + 3.5 x 1.4826 x 1.5 = 10.8."""
    values = [1.0, 2.0, 3.0, 3.0, 5.0, 100.0]
    assert high_outliers(values).tolist() == [False] * 5 + [True]
    assert not high_outliers([1.0, 2.0, 3.0, 4.0, 5.0, 8.0]).any()
    assert high_outliers([1.0] * 9 + [1.1]).tolist() == [False] * 9 + [True]
