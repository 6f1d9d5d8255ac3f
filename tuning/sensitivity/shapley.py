"""SHAP of a model of a study's trials: what each knob and each pair of knobs adds to a trial, and which way.

The manner of "Optimizing Distributed Training on Frontier for LLMs" (arXiv 2312.12705), which asks SHAP which
hyper-parameter of its search moved throughput. Lundberg et al. 2020, "From local explanations to global understanding
with explainable AI for trees", for values and interactions of trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from tuning.points import Point
from tuning.sensitivity import values
from tuning.sensitivity.columns import Array, Columns
from tuning.sensitivity.dependence import nearest
from tuning.sensitivity.surrogate import Surrogate

TOP_PAIRS = 10
#: Interactions are worked out for so many rows at a time, and told in between.
_ROWS_AT_A_TIME = 64
#: From this rank correlation on, more of a number is said to be better or worse.
_ONE_WAY = 0.5
Show = Callable[[Array], Array]
Tell = Callable[[float], None]


def percent(logarithms: Array) -> Array:
    """What a change of a logarithm is in percent."""
    return 100 * np.expm1(logarithms)


def points_of_chance(shares: Array) -> Array:
    """What a change of a chance is in percentage points."""
    return 100 * shares


def explain(
    found: Surrogate, columns: Columns, points: Sequence[Point], show: Show, tell: Tell
) -> dict[str, Any]:
    """``knobs`` and ``pairs``, the largest mean effect first. ``show`` puts the model's unit into ``effect``'s."""
    import shap

    rows, explainer = columns.of(points), shap.TreeExplainer(found.model)
    effects, both = np.asarray(explainer.shap_values(rows)), []
    for start in range(0, len(rows), _ROWS_AT_A_TIME):
        both.append(np.asarray(explainer.shap_interaction_values(rows[start : start + _ROWS_AT_A_TIME])))
        tell(min(1.0, (start + _ROWS_AT_A_TIME) / len(rows)))
    knobs = [
        _knob(group, effects[:, place].sum(axis=1), points, show)
        for group, (_, place) in zip(columns.groups, columns.slices(), strict=True)
    ]
    pairs = _pairs(np.concatenate(both), columns, show)
    return {
        "knobs": sorted(knobs, key=lambda row: -row["effect"]),
        "pairs": sorted(pairs, key=lambda row: -row["effect"])[:TOP_PAIRS],
    }


def _knob(group: Any, effects: Array, points: Sequence[Point], show: Show) -> dict[str, Any]:
    knob = group.knob
    at = [nearest(knob, point[knob.key]) for point in points]
    rows = []
    for value in values.ordered(knob, at):
        own = effects[[one == value for one in at]]
        rows.append({"value": value, "trials": len(own), "effect": float(show(own.mean()))})
    direction = _direction([group.of(point[knob.key])[0] for point in points], effects)
    return {
        "key": knob.key,
        "effect": float(show(np.abs(effects).mean())),
        "direction": direction if values.is_number(knob) else None,
        "values": rows,
    }


def _direction(numbers: list[float], effects: Array) -> str:
    """Which way the effect goes as the number grows, by the rank correlation of the two."""
    if np.ptp(effects) < 1e-9:
        return "none"
    rank_correlation = float(np.corrcoef(_ranks(np.asarray(numbers)), _ranks(effects))[0, 1])
    if abs(rank_correlation) < _ONE_WAY:
        return "mixed"
    return "up" if rank_correlation > 0 else "down"


def _ranks(numbers: Array) -> Array:
    _, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(middle[inverse.reshape(-1)], np.float64)


def _pairs(both: Array, columns: Columns, show: Show) -> list[dict[str, Any]]:
    """An interaction stands half above and half below the diagonal, so a pair's is twice the sum of its block."""
    return [
        {
            "keys": [one, other],
            "effect": float(show(np.abs(2 * both[:, first, second].sum(axis=(1, 2))).mean())),
        }
        for (one, first), (other, second) in combinations(columns.slices(), 2)
    ]
