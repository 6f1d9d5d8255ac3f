"""fANOVA: which share of the spread of values each knob explains alone, by Optuna's forest of trees.

Hutter, Hoos and Leyton-Brown 2014, "An efficient approach for assessing hyperparameter importance". The forest is grown
a few trees at a time: its shares are means over trees, so what is there is right at any time, only less sure.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from tuning.importance import as_study
from tuning.points import Point
from tuning.sensitivity import evidence
from tuning.space import Space
from tuning.state import StudyState

MINIMUM_TRIALS = 12
TREES, TREES_AT_A_TIME = 64, 8
_GROUPS = TREES // TREES_AT_A_TIME


def fanova(state: StudyState, space: Space) -> Iterator[dict[str, Any]]:
    """The shares after every few trees: ``values`` of the logarithm's variance, ``plus_minus`` their standard error
    over groups of trees, ``interactions`` what is left for knobs together; or why they are not known.
    """
    points = [
        (_within(evidence.knobs_at(space, trial), space), math.log(trial.value or 1.0))
        for trial in evidence.measured(state)
    ]
    reason = _reason(points)
    if reason:
        yield {"values": None, "reason": reason, "trials": len(points), "complete": True}
        return
    study, found = as_study(points, space), list[dict[str, float]]()
    for seed in range(_GROUPS):
        found.append(_shares(study, seed))
        yield _document(found, len(points))


def _reason(points: list[tuple[Point, float]]) -> str:
    if len(points) < MINIMUM_TRIALS:
        return f"needs {MINIMUM_TRIALS} measured trials; there are {len(points)}"
    return "" if len({value for _, value in points}) > 1 else "every trial measured the same"


def _within(point: Point, space: Space) -> Point:
    """A knob at rest may stand outside its range; then the nearer end stands for it."""
    ends = {knob.key: (knob.low, knob.high) for knob in space.knobs if knob.is_range}
    return {
        key: min(max(value, ends[key][0]), ends[key][1]) if key in ends else value
        for key, value in point.items()
    }


def _shares(study: Any, seed: int) -> dict[str, float]:
    import optuna

    evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=TREES_AT_A_TIME, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {key: float(share) for key, share in evaluator.evaluate(study).items()}


def _document(found: list[dict[str, float]], trials: int) -> dict[str, Any]:
    table = {key: np.array([shares[key] for shares in found]) for key in found[0]}
    order = sorted(table, key=lambda key: -float(table[key].mean()))
    count = len(found)
    return {
        "values": {key: float(table[key].mean()) for key in order},
        "plus_minus": {key: _error(table[key]) for key in order},
        "interactions": max(0.0, 1.0 - sum(float(shares.mean()) for shares in table.values())),
        "trees": count * TREES_AT_A_TIME,
        "trials": trials,
        "reason": "",
        "complete": count == _GROUPS,
    }


def _error(shares: np.ndarray[Any, Any]) -> float | None:
    return float(shares.std(ddof=1) / math.sqrt(len(shares))) if len(shares) > 1 else None
