"""How good predictions are: mean error, order, and what following them would cost."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuning.predict.model.cases import Array


class Score(NamedTuple):
    """``mean_error`` is of |predicted / measured - 1|, ``regret`` how much slower than the best the predicted best is,
    ``recalled`` whether the best is among the ten that are predicted fastest.
    """

    mean_error: float
    spearman: float
    regret: float
    recalled: bool


def score(predicted: Array, measured: Array) -> Score:
    """Of seconds: less is better."""
    order = np.argsort(predicted, kind="stable")
    best = int(np.argmin(measured))
    regret = float(measured[order[0]] / measured[best] - 1)
    return Score(mean_error(predicted, measured), spearman(predicted, measured), regret, best in order[:10])


def mean_error(predicted: Array, measured: Array) -> float:
    """Mean of |predicted / measured - 1|."""
    return float(np.abs(predicted / measured - 1).mean())


def spearman(one: Array, other: Array) -> float:
    """Rank correlation; ties share their ranks."""
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def one_efficiency(
    flops: Array, devices: Array, seconds: Array, train: NDArray[Any], test: NDArray[Any]
) -> float:
    """Mean error of FLOPs / (devices x one rate), the rate being the median of the rows it is fitted to."""
    rate = np.median((flops / devices / seconds)[train])
    return mean_error((flops / devices / rate)[test], seconds[test])


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks
