"""Whether one order is another's: places of values, and how well they agree over rounds of measurement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._scores import spearman

_DRAWS = 2000


def places(values: Sequence[float]) -> np.ndarray:
    """Places in ascending order from 1; equal values share the mean of theirs."""
    found = np.array(values)
    below = (found[:, None] > found).sum(axis=1)
    return np.asarray(below + ((found[:, None] == found).sum(axis=1) + 1) / 2)


def agreement(predicted: np.ndarray, taken: np.ndarray) -> str:
    """Spearman of what was predicted and the medians of ``taken`` [cases, rounds], with a 95 % interval.

    The interval is a bootstrap over rounds, which meet all cases alike.
    """
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, taken.shape[1], (_DRAWS, taken.shape[1]))
    found = [spearman(predicted, np.median(taken[:, rounds], axis=1)) for rounds in drawn]
    low, high = np.percentile(found, [2.5, 97.5])
    middle = spearman(predicted, np.median(taken, axis=1))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"
