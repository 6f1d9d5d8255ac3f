"""Models of a study's trials: boosted trees, fANOVA and SHAP.

The boosted trees are scikit-learn's, with their quality on points not seen. fANOVA is the share of the spread of
values that each knob explains alone, by Optuna's forest (Hutter, Hoos and Leyton-Brown 2014, "An efficient approach
for assessing hyperparameter importance"). The forest is grown a few trees at a time: its shares are means over trees,
so what is there is right at any time, only less sure.

SHAP says what each knob and each pair of knobs adds to a trial, and which way, in the manner of "Optimizing
Distributed Training on Frontier for LLMs" (arXiv 2312.12705); Lundberg et al. 2020, "From local explanations to
global understanding with explainable AI for trees", for values and interactions of trees.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np

from tuning.analysis import confirmation
from tuning.sensitivity import data
from tuning.sensitivity.data import Array, Columns, columns
from tuning.sensitivity.effects import nearest, neighbours
from tuning.sensitivity.importance import build_study
from tuning.sensitivity.outcomes import (
    Fanova,
    KnobEffect,
    ModelEffects,
    PairEffect,
    PredictedKnob,
    PredictedNeighbour,
    PredictedValue,
    Shap,
    ValueEffect,
)
from tuning.space.points import Point
from tuning.space.space import Space
from tuning.spec.study_file import StudyFile
from tuning.storage.state import StudyState

FOLDS = 5
#: Shallow trees: interactions of up to four knobs, and SHAP of a thousand trials in seconds.
_SETTINGS = {"n_estimators": 100, "max_depth": 4, "learning_rate": 0.12, "min_samples_leaf": 2}
_SEED = 0


@dataclass(frozen=True, slots=True)
class Surrogate:
    """``model`` is fitted to all rows; ``held_out`` has each row as models predict it that have not seen its point."""

    model: Any
    measured: Array
    held_out: Array

    @property
    def r_squared(self) -> float:
        """Share of the variance that is predicted on points not seen; below 0 is worse than the mean."""
        spread = float(((self.measured - self.measured.mean()) ** 2).sum())
        return 1 - float(((self.measured - self.held_out) ** 2).sum()) / spread if spread else float("nan")

    @property
    def auc(self) -> float:
        """How often a failed row is held likelier to fail than one that ran; 0.5 is a coin."""
        bad, good = self.held_out[self.measured > 0.5], self.held_out[self.measured <= 0.5]
        above = bad[:, None] - good[None, :]
        return float(((above > 0) + 0.5 * (above == 0)).mean())

    @property
    def error(self) -> float:
        """What 90 % of held-out rows are off by at most."""
        return float(np.quantile(np.abs(self.measured - self.held_out), 0.9))

    def predict(self, rows: Array) -> Array:
        """Of other rows."""
        return np.asarray(self.model.predict(rows), np.float64)


def fit(rows: Array, measured: Array) -> Surrogate:
    """Least squares, so that of 0 and 1 it is a chance; equal rows are always held out together."""
    held_out = np.full(len(measured), measured.mean())
    folds = _folds(rows)
    for fold in np.unique(folds):
        training = folds != fold
        if training.any():
            held_out[~training] = _model().fit(rows[training], measured[training]).predict(rows[~training])
    return Surrogate(_model().fit(rows, measured), measured, held_out)


def _folds(rows: Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    _, group = np.unique(rows, axis=0, return_inverse=True)
    order = np.random.default_rng(_SEED).permutation(int(group.max()) + 1)
    return np.asarray(order[group.reshape(-1)] % FOLDS, np.int64)


def _model() -> Any:
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(**_SETTINGS, random_state=_SEED)


MINIMUM_TRIALS = 12
TREES, TREES_AT_A_TIME = 64, 8
_GROUPS = TREES // TREES_AT_A_TIME


def fanova(state: StudyState, space: Space) -> Iterator[Fanova]:
    """The shares after every few trees, or once why they are not known."""
    points = [
        (_clip_to_ranges(data.knobs_at(space, trial), space), math.log(trial.value or 1.0))
        for trial in data.measured_trials(state)
    ]
    reason = _reason(points)
    if reason:
        yield Fanova(reason=reason, trials=len(points), complete=True)
        return
    study, importances = build_study(points, space), list[dict[str, float]]()
    for seed in range(_GROUPS):
        importances.append(_shares(study, seed))
        yield _so_far(importances, len(points))


def _reason(points: list[tuple[Point, float]]) -> str:
    if len(points) < MINIMUM_TRIALS:
        return f"needs {MINIMUM_TRIALS} measured trials; there are {len(points)}"
    return "" if len({value for _, value in points}) > 1 else "every trial measured the same"


def _clip_to_ranges(point: Point, space: Space) -> Point:
    """A knob that does not act may stand outside its range; then the nearer end stands for it."""
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


def _so_far(importances: list[dict[str, float]], trials: int) -> Fanova:
    table = {key: np.array([shares[key] for shares in importances]) for key in importances[0]}
    order = sorted(table, key=lambda key: -float(table[key].mean()))
    count = len(importances)
    return Fanova(
        values={key: float(table[key].mean()) for key in order},
        plus_minus={key: _error(table[key]) for key in order},
        interactions=max(0.0, 1.0 - sum(float(shares.mean()) for shares in table.values())),
        trees=count * TREES_AT_A_TIME,
        trials=trials,
        complete=count == _GROUPS,
    )


def _error(shares: np.ndarray[Any, Any]) -> float | None:
    return float(shares.std(ddof=1) / math.sqrt(len(shares))) if len(shares) > 1 else None


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
    surrogate: Surrogate, columns: Columns, points: Sequence[Point], show: Show, tell: Tell
) -> tuple[list[KnobEffect], list[PairEffect]]:
    """Of knobs and of pairs, the largest mean effect first. ``show`` puts the model's unit into ``effect``'s."""
    import shap

    rows, explainer = columns.encode(points), shap.TreeExplainer(surrogate.model)
    effects, both = np.asarray(explainer.shap_values(rows)), []
    for start in range(0, len(rows), _ROWS_AT_A_TIME):
        both.append(np.asarray(explainer.shap_interaction_values(rows[start : start + _ROWS_AT_A_TIME])))
        tell(min(1.0, (start + _ROWS_AT_A_TIME) / len(rows)))
    knobs = [
        _knob(group, effects[:, place].sum(axis=1), points, show)
        for group, (_, place) in zip(columns.groups, columns.slices(), strict=True)
    ]
    pairs = _pairs(np.concatenate(both), columns, show)
    strongest = sorted(pairs, key=lambda row: -row.effect)[:TOP_PAIRS]
    return sorted(knobs, key=lambda row: -row.effect), strongest


def _knob(group: Any, effects: Array, points: Sequence[Point], show: Show) -> KnobEffect:
    knob = group.knob
    values = nearest(knob, [point[knob.key] for point in points])
    rows = []
    for value in data.sort_values(knob, values):
        of_value = effects[[knob_value == value for knob_value in values]]
        rows.append(ValueEffect(value, len(of_value), float(show(of_value.mean()))))
    numbers = [group.encode(point[knob.key])[0] for point in points]
    direction = _direction(numbers, effects) if data.is_number(knob) else None
    return KnobEffect(knob.key, float(show(np.abs(effects).mean())), direction, rows)


def _direction(numbers: list[float], effects: Array) -> Literal["up", "down", "mixed", "none"]:
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


def _pairs(both: Array, columns: Columns, show: Show) -> list[PairEffect]:
    """An interaction stands half above and half below the diagonal, so a pair's is twice the sum of its block."""
    return [
        PairEffect(
            (name, other_name), float(show(np.abs(2 * both[:, first, second].sum(axis=(1, 2))).mean()))
        )
        for (name, first), (other_name, second) in combinations(columns.slices(), 2)
    ]


MINIMUM_TRIALS_OF_MODEL, MINIMUM_OF_EACH = 20, 5
#: A model that predicts held-out trials worse than this is not interpreted.
LEAST_R_SQUARED, LEAST_AUC = 0.2, 0.65
#: Points that partial dependence is averaged over, at most.
_AVERAGED = 200
TellStage = Callable[[float, str], None]


class FittedModel(NamedTuple):
    """A model and what it was fitted to."""

    surrogate: Surrogate
    columns: Columns
    points: list[Point]


def explain_trials(state: StudyState, file: StudyFile, tell: TellStage) -> Shap:
    """What trials' values and failures depend on, and what values that were not measured are predicted to be."""
    space = file.search_space
    tell(0.05, "fitting values")
    value, fitted = _of_values(state, space, lambda part: tell(0.2 + 0.4 * part, "SHAP of values"))
    tell(0.6, "fitting failures")
    failure, fails = _of_failures(state, space, lambda part: tell(0.7 + 0.2 * part, "SHAP of failures"))
    tell(0.9, "predicting")
    best = confirmation.winner(state, file)
    return Shap(
        winner=best.number if best else None,
        value=value,
        failure=failure,
        dependence=_dependence(fitted, space) if fitted else [],
        neighbours=_neighbours(state, file, fitted, fails) if fitted else [],
    )


def _of_values(
    state: StudyState, space: Space, tell: Callable[[float], None]
) -> tuple[ModelEffects, FittedModel | None]:
    trials = data.measured_trials(state)
    answer = ModelEffects(trials=len(trials), r_squared=None, unit="percent")
    if len(trials) < MINIMUM_TRIALS_OF_MODEL:
        few = f"needs {MINIMUM_TRIALS_OF_MODEL} measured trials; there are {len(trials)}"
        return replace(answer, reason=few), None
    points = [data.knobs_at(space, trial) for trial in trials]
    logarithms = np.log([trial.value or 1.0 for trial in trials])
    fitted = _fit(space, points, logarithms)
    if fitted is None or not np.ptp(logarithms):
        return replace(answer, reason="every trial had the same knobs or the same value"), None
    score = fitted.surrogate.r_squared
    if score < LEAST_R_SQUARED:
        poor = _poor(f"an R^2 of {score:.2f}", LEAST_R_SQUARED)
        return replace(answer, r_squared=score, reason=poor), None
    knobs, pairs = explain(fitted.surrogate, fitted.columns, points, percent, tell)
    error = float(percent(np.array(fitted.surrogate.error)))
    return replace(answer, knobs=knobs, pairs=pairs, r_squared=score, error_percent=error), fitted


def _of_failures(
    state: StudyState, space: Space, tell: Callable[[float], None]
) -> tuple[ModelEffects, FittedModel | None]:
    outcomes = data.judged_trials(state)
    bad = sum(1 for _, failed in outcomes if failed)
    answer = ModelEffects(trials=len(outcomes), failed=bad, auc=None, unit="percentage points")
    if min(bad, len(outcomes) - bad) < MINIMUM_OF_EACH:
        few = f"needs {MINIMUM_OF_EACH} trials that failed and as many that ran; {bad} of {len(outcomes)} failed"
        return replace(answer, reason=few), None
    points = [data.knobs_at(space, trial) for trial, _ in outcomes]
    fitted = _fit(space, points, np.array([float(failed) for _, failed in outcomes]))
    if fitted is None:
        return replace(answer, reason="every trial had the same knobs"), None
    score = fitted.surrogate.auc
    if score < LEAST_AUC:
        return replace(answer, auc=score, reason=_poor(f"an AUC of {score:.2f}", LEAST_AUC)), None
    knobs, pairs = explain(fitted.surrogate, fitted.columns, points, points_of_chance, tell)
    return replace(answer, knobs=knobs, pairs=pairs, auc=score), fitted


def _poor(score: str, least: float) -> str:
    return (
        f"the model predicts trials that it has not seen with {score}; below {least:g} it is not interpreted"
    )


def _fit(space: Space, points: list[Point], targets: Any) -> FittedModel | None:
    encoder = columns(space.knobs, points)
    return FittedModel(fit(encoder.encode(points), targets), encoder, points) if encoder.groups else None


def _dependence(fitted: FittedModel, space: Space) -> list[PredictedKnob]:
    """The mean prediction at each value of each knob: trials in which it acts, moved there, as far as that is legal."""
    count = len(fitted.points)
    chosen = np.random.default_rng(0).permutation(count)[:_AVERAGED]
    points = [space.canonical_point(space.point(fitted.points[index])) for index in sorted(chosen)]
    rows = []
    for group in fitted.columns.groups:
        values = data.sort_values(group.knob, group.knob.grid() if group.knob.is_range else group.values_seen)
        points_of_values = (
            (value, _points_at(points, group.knob.key, value, space))
            for value in values
            if group.knows(value)
        )
        predictions = [_predict_value(value, moved, fitted) for value, moved in points_of_values if moved]
        rows.append(PredictedKnob(group.knob.key, predictions))
    return rows


def _points_at(points: Sequence[Point], key: str, value: Any, space: Space) -> list[Point]:
    acting = (point for point in points if space.is_active(key, point))
    moved = (
        point if point[key] == value else data.move_point(space, point, key, value)[0] for point in acting
    )
    return [point for point in moved if point is not None]


def _predict_value(value: Any, points: Sequence[Point], fitted: FittedModel) -> PredictedValue:
    full = [point for point in points if fitted.columns.know(point)]
    mean = float(np.exp(fitted.surrogate.predict(fitted.columns.encode(full))).mean()) if full else None
    return PredictedValue(value, len(full), mean)


def _neighbours(
    state: StudyState, file: StudyFile, fitted: FittedModel, fails: FittedModel | None
) -> list[PredictedNeighbour]:
    """What neighbours that were not measured are predicted to lose, with what 90 % of held-out trials were off."""
    winner = confirmation.winner(state, file)
    if winner is None:
        return []
    space, rows = file.search_space, []
    prediction = fitted.surrogate.predict(fitted.columns.encode([data.knobs_at(space, winner)]))[0]
    for neighbour in neighbours(state, file):
        if neighbour.config is None or neighbour.stands != "unknown":
            continue
        point = space.base_values | neighbour.config
        if not fitted.columns.know(point):
            continue
        gap = float(fitted.surrogate.predict(fitted.columns.encode([point]))[0] - prediction)
        loss, low, high = (100 * float(-np.expm1(gap + sign * fitted.surrogate.error)) for sign in (0, 1, -1))
        rows.append(
            PredictedNeighbour(neighbour.key, neighbour.value, _chance(fails, point), loss, low, high)
        )
    return rows


def _chance(fails: FittedModel | None, point: Point) -> float | None:
    if fails is None or not fails.columns.know(point):
        return None
    return float(np.clip(fails.surrogate.predict(fails.columns.encode([point]))[0], 0, 1))
