"""How many steps a run needed to settle, on planted step times."""

from __future__ import annotations

import numpy as np
import pytest

from profilers.analysis.statistics import standard_errors, warmup_steps


def noise(count: int, seed: int, deviation: float = 0.01) -> np.ndarray:
    return 1.0 + deviation * np.random.default_rng(seed).standard_normal(count)


def test_the_rule_is_the_squared_error_of_the_mean_of_what_remains() -> None:
    values = np.array([5.0, 1.0, 2.0, 1.0, 3.0])
    for cut in range(4):
        rest = values[cut:]
        expected = ((rest - rest.mean()) ** 2).sum() / len(rest) ** 2
        assert standard_errors(values)[cut] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("planted", [1, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_slow_first_steps_are_found(planted: int, seed: int) -> None:
    values = noise(60, seed)
    values[:planted] += 0.4
    assert warmup_steps(values) == planted


@pytest.mark.parametrize("seed", range(20))
def test_even_steps_have_no_warm_up(seed: int) -> None:
    assert warmup_steps(noise(40, seed)) == 0


@pytest.mark.parametrize("place", [9, 14, 30, 39])
def test_a_hiccup_is_no_warm_up(place: int) -> None:
    values = noise(40, 7)
    values[place] = 6.0
    assert warmup_steps(values) == 0


def test_a_slow_start_is_found_beside_hiccups() -> None:
    values = noise(80, 3)
    values[:4] *= 1.5
    values[[20, 55]] = 9.0
    assert warmup_steps(values) == 4


def test_clocks_that_slow_down_later_are_found_too() -> None:
    values = noise(60, 1)
    values[:10] -= 0.2
    assert warmup_steps(values) == 10


def test_a_decay_is_cut_where_noise_hides_it() -> None:
    values = noise(100, 2) + 2.0 * np.exp(-np.arange(100) / 5.0)
    found = warmup_steps(values)
    assert found is not None
    assert 15 <= found <= 35


def test_steps_that_never_settle_have_no_answer() -> None:
    assert warmup_steps(np.linspace(3.0, 1.0, 40)) is None


def test_too_few_steps_have_no_answer() -> None:
    assert warmup_steps([9.0, 1.0, 1.0]) is None


def test_equal_steps() -> None:
    assert warmup_steps([1.0] * 30) == 0
