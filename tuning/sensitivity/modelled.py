"""What a model of a study's trials says: SHAP of values and of failures, and predictions where nothing was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tuning import ranking
from tuning.points import Point
from tuning.sensitivity import evidence, shapley, surrogate, values
from tuning.sensitivity.columns import Columns, columns
from tuning.sensitivity.neighbours import neighbours
from tuning.sensitivity.surrogate import Surrogate
from tuning.space import Space
from tuning.state import StudyState
from tuning.studyfile import StudyFile

MINIMUM_TRIALS, MINIMUM_OF_EACH = 20, 5
#: A model that predicts held-out trials worse than this is not interpreted.
LEAST_R_SQUARED, LEAST_AUC = 0.2, 0.65
#: Points that partial dependence is averaged over, at most.
_AVERAGED = 200
Tell = Callable[[float, str], None]


class Fitted(NamedTuple):
    """A model and what it was fitted to."""

    found: Surrogate
    columns: Columns
    points: list[Point]


def modelled(state: StudyState, file: StudyFile, tell: Tell) -> dict[str, Any]:
    """``value``: effects in percent of a trial's value. ``failure``: in points of the chance to fail.

    ``dependence`` and ``neighbours``: predictions; empty where the model is not good enough, as ``value`` says.
    """
    space = file.search_space
    tell(0.05, "fitting values")
    value, fitted = _of_values(state, space, lambda part: tell(0.2 + 0.4 * part, "SHAP of values"))
    tell(0.6, "fitting failures")
    failure, fails = _of_failures(state, space, lambda part: tell(0.7 + 0.2 * part, "SHAP of failures"))
    tell(0.9, "predicting")
    best = ranking.standing(state, file).best
    return {
        "winner": best.number if best else None,
        "value": value,
        "failure": failure,
        "dependence": _dependence(fitted, space) if fitted else [],
        "neighbours": _neighbours(state, file, fitted, fails) if fitted else [],
        "complete": True,
    }


def _of_values(
    state: StudyState, space: Space, tell: Callable[[float], None]
) -> tuple[dict[str, Any], Fitted | None]:
    trials = evidence.measured(state)
    known = {"trials": len(trials), "r_squared": None, "unit": "percent", "knobs": None, "pairs": None}
    if len(trials) < MINIMUM_TRIALS:
        return known | {"reason": f"needs {MINIMUM_TRIALS} measured trials; there are {len(trials)}"}, None
    points = [evidence.knobs_at(space, trial) for trial in trials]
    logarithms = np.log([trial.value or 1.0 for trial in trials])
    fitted = _fit(space, points, logarithms)
    if fitted is None or not np.ptp(logarithms):
        return known | {"reason": "every trial had the same knobs or the same value"}, None
    score = fitted.found.r_squared
    if score < LEAST_R_SQUARED:
        return known | {"r_squared": score, "reason": _poor(f"an R^2 of {score:.2f}", LEAST_R_SQUARED)}, None
    told = shapley.explain(fitted.found, fitted.columns, points, shapley.percent, tell)
    error = float(shapley.percent(np.array(fitted.found.error)))
    return known | told | {"r_squared": score, "error_percent": error, "reason": ""}, fitted


def _of_failures(
    state: StudyState, space: Space, tell: Callable[[float], None]
) -> tuple[dict[str, Any], Fitted | None]:
    found = evidence.judged(state)
    bad = sum(1 for _, failed in found if failed)
    known = {"trials": len(found), "failed": bad, "auc": None, "unit": "percentage points"}
    known |= {"knobs": None, "pairs": None}
    if min(bad, len(found) - bad) < MINIMUM_OF_EACH:
        words = (
            f"needs {MINIMUM_OF_EACH} trials that failed and as many that ran; {bad} of {len(found)} failed"
        )
        return known | {"reason": words}, None
    points = [evidence.knobs_at(space, trial) for trial, _ in found]
    fitted = _fit(space, points, np.array([float(failed) for _, failed in found]))
    if fitted is None:
        return known | {"reason": "every trial had the same knobs"}, None
    score = fitted.found.auc
    if score < LEAST_AUC:
        return known | {"auc": score, "reason": _poor(f"an AUC of {score:.2f}", LEAST_AUC)}, None
    told = shapley.explain(fitted.found, fitted.columns, points, shapley.points_of_chance, tell)
    return known | told | {"auc": score, "reason": ""}, fitted


def _poor(score: str, least: float) -> str:
    return (
        f"the model predicts trials that it has not seen with {score}; below {least:g} it is not interpreted"
    )


def _fit(space: Space, points: list[Point], targets: Any) -> Fitted | None:
    made = columns(space.knobs, points)
    return Fitted(surrogate.fit(made.of(points), targets), made, points) if made.groups else None


def _dependence(fitted: Fitted, space: Space) -> list[dict[str, Any]]:
    """The mean prediction at each value of each knob: trials in which it acts, moved there, as far as that is legal."""
    count = len(fitted.points)
    chosen = np.random.default_rng(0).permutation(count)[:_AVERAGED]
    points = [space.settled(space.point(fitted.points[index])) for index in sorted(chosen)]
    rows = []
    for group in fitted.columns.groups:
        shown = values.ordered(group.knob, group.knob.grid() if group.knob.is_range else group.seen)
        found = ((value, _at(points, group.knob.key, value, space)) for value in shown if group.knows(value))
        at = [_predicted(value, moved, fitted) for value, moved in found if moved]
        rows.append({"key": group.knob.key, "values": at})
    return rows


def _at(points: Sequence[Point], key: str, value: Any, space: Space) -> list[Point]:
    acting = (point for point in points if space.is_active(key, point))
    found = (point if point[key] == value else values.moved(space, point, key, value)[0] for point in acting)
    return [point for point in found if point is not None]


def _predicted(value: Any, points: Sequence[Point], fitted: Fitted) -> dict[str, Any]:
    full = [point for point in points if fitted.columns.know(point)]
    mean = float(np.exp(fitted.found.predict(fitted.columns.of(full))).mean()) if full else None
    return {"value": value, "points": len(full), "mean": mean}


def _neighbours(
    state: StudyState, file: StudyFile, fitted: Fitted, fails: Fitted | None
) -> list[dict[str, Any]]:
    """What neighbours that were not measured are predicted to lose, with what 90 % of held-out trials were off."""
    winner = ranking.standing(state, file).best
    if winner is None:
        return []
    space, rows = file.search_space, []
    here = fitted.found.predict(fitted.columns.of([evidence.knobs_at(space, winner)]))[0]
    for one in neighbours(state, file):
        if one.config is None or one.stands != "unknown":
            continue
        point = space.base_values | one.config
        if not fitted.columns.know(point):
            continue
        gap = float(fitted.found.predict(fitted.columns.of([point]))[0] - here)
        bounds = [100 * float(-np.expm1(gap + sign * fitted.found.error)) for sign in (0, 1, -1)]
        chance = _chance(fails, point)
        rows.append(
            {"key": one.key, "value": one.value, "failure_chance": chance}
            | dict(zip(("loss_percent", "low_percent", "high_percent"), bounds, strict=True))
        )
    return rows


def _chance(fails: Fitted | None, point: Point) -> float | None:
    if fails is None or not fails.columns.know(point):
        return None
    return float(np.clip(fails.found.predict(fails.columns.of([point]))[0], 0, 1))
