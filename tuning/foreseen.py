"""What predictions of configurations amount to as a belief for the search: seconds, memory, and which are alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from tuning.posterior import Array, Belief
from tuning.predict.forecast import forecasts
from tuning.predict.target import Target

#: Half of an interval of 90 %, in standard deviations.
_OF_90_PERCENT = 1.645


def belief(configs: Sequence[RunConfig], target: Target) -> Belief:
    """Of configurations with the same model and data on one target. Log seconds are of a token, so that batches of
    different sizes compare.

    Raises:
        InputError: there is none, one breaks a rule, is not of the cluster's size, or the device lacks a figure.
    """
    if not configs:
        raise InputError("space", None, "holds no configuration to predict")
    found = forecasts(configs, target)
    low, high = (np.array([getattr(one.step_seconds, end) for one in found]) for end in ("low", "high"))
    return Belief.of(
        features([config.flat() for config in configs]),
        -np.log([one.tokens_per_second for one in found]),
        np.log(high / low) / (2 * _OF_90_PERCENT),
        np.array([one.out_of_memory_probability for one in found]),
        fills=np.array([one.memory_bytes.median for one in found]) / target.memory_bytes,
    )


def features(points: Sequence[dict[str, Any]]) -> Array:
    """Columns for the keys that differ: exponents of two of numbers above 0, numbers as they are where 0 is one of
    them, and a column of 0 and 1 for each value of anything else.
    """
    columns: list[Array] = []
    for key in points[0]:
        values = [point[key] for point in points]
        if any(value != values[0] for value in values):
            columns += _columns(values)
    return np.stack(columns, axis=1) if columns else np.zeros((len(points), 0))


def _columns(values: list[Any]) -> list[Array]:
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        numbers = np.array(values, np.float64)
        return [np.log2(numbers) if (numbers > 0).all() else numbers]
    kinds = dict.fromkeys(map(repr, values))
    return [np.array([repr(value) == kind for value in values], np.float64) for kind in kinds]
