"""Means and their intervals against known results."""

import math

import numpy as np
import pytest

from profilers.analysis import statistics
from profilers.analysis.statistics import Interval, bootstrap_means, mean_interval, p95


def noisy(count: int, seed: int, autocorrelation: float = 0.0) -> np.ndarray:
    """Step times around 1 s with a first-order autocorrelation."""
    noise = np.random.default_rng(seed).normal(0, 0.1, count)
    for index in range(1, count):
        noise[index] += autocorrelation * noise[index - 1]
    return 1.0 + noise


def coverage(autocorrelation: float, count: int, trials: int = 150) -> float:
    """How often the interval holds the true mean, 1."""
    intervals = [mean_interval(noisy(count, seed, autocorrelation), seed, 300) for seed in range(trials)]
    return sum((low or 0) <= 1.0 <= (high or 0) for _, low, high in intervals) / trials


def test_mean_and_percentile_of_known_values() -> None:
    assert mean_interval([3.0, 1.0, 2.0]).value == 2.0
    assert mean_interval([1.0, 2.0, 3.0, 4.0]).value == 2.5
    assert p95(list(range(101))) == 95.0


def test_the_same_seed_gives_the_same_interval() -> None:
    values = noisy(40, 1)
    assert mean_interval(values, seed=3) == mean_interval(values, seed=3)
    assert mean_interval(values, seed=3) != mean_interval(values, seed=4)


def test_interval_of_independent_values_is_as_wide_as_theory_says() -> None:
    """The mean of n values has the standard error sigma / sqrt(n)."""
    widths = [
        high - low
        for seed in range(20)
        for _, low, high in [mean_interval(noisy(400, seed), seed)]
        if low is not None and high is not None
    ]
    theory = 2 * 1.96 * 0.1 / math.sqrt(400)
    assert np.mean(widths) == pytest.approx(theory, rel=0.15)


def test_intervals_hold_the_true_mean_about_as_often_as_they_say() -> None:
    assert 0.88 <= coverage(0.0, 60) <= 1.0


def test_blocks_widen_the_interval_of_autocorrelated_steps() -> None:
    values = noisy(400, 5, autocorrelation=0.8)
    _, low, high = mean_interval(values)
    shuffled = np.random.default_rng(0).permutation(values)
    _, shuffled_low, shuffled_high = mean_interval(shuffled)
    assert low is not None and high is not None and shuffled_low is not None and shuffled_high is not None
    assert high - low > 1.3 * (shuffled_high - shuffled_low)


def test_blocks_are_runs_of_neighbours() -> None:
    indices = statistics._block_indices(np.random.default_rng(0), 1000, 50)
    assert indices.shape == (50, 1000)
    assert indices.min() >= 0 and indices.max() <= 999
    assert (np.diff(indices[:, :10], axis=1) == 1).all()


def test_long_series_are_resampled_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_CHUNK_VALUES", 1000)
    means = bootstrap_means(noisy(300, 1), resamples=100)
    assert means is not None
    assert means.shape == (100,)


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.2]])
def test_too_few_values_have_no_interval(values: list[float]) -> None:
    assert mean_interval(values) == Interval(float(np.mean(values)), None, None)


def test_constant_values_have_an_interval_without_width() -> None:
    assert mean_interval([0.5] * 10) == Interval(0.5, 0.5, 0.5)


def test_what_cannot_be_summed_up_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])
    with pytest.raises(ValueError, match="finite"):
        p95([1.0, math.nan])
