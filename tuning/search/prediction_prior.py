"""Predictions as a prior of the search: seconds and memory of configurations, and the point that promises most.

Predictions are of exact settings; whether a lossy one may win is not theirs to say. Every fourth proposal is the
sampler's own, so that what predictions are wrong about is found, too; they fall silent where nothing is left that
promises a gain of 1 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

import numpy as np

from engine.config.errors import InputError
from engine.config.knobs.facts import AUTO
from engine.config.run_config import RunConfig
from tuning.analysis.leaderboard import changes_result
from tuning.predict.forecast import forecasts
from tuning.predict.model.headroom import HALF_OF_90_PERCENT
from tuning.predict.target import Target
from tuning.search import acquisition, budgets
from tuning.search.acquisition import HOPELESS
from tuning.search.budgets import InfeasibleSpace
from tuning.search.surrogate import Array, Observations, PredictionRecord, Prior, prediction_errors
from tuning.space.points import Point, point_key
from tuning.space.space import Space
from tuning.storage.state import StudyState, Trial


def prior_from_predictions(
    configs: Sequence[RunConfig], target: Target, columns: Array | None = None
) -> Prior:
    """Of configurations with the same model and data on one target. Log seconds are of a token, so that batches of
    different sizes compare. ``columns``: their :func:`features`, if these are not those of their values.

    Raises:
        InputError: there is none, one breaks a rule, is not of the cluster's size, or the device lacks a figure.
    """
    if not configs:
        raise InputError("space", None, "holds no configuration to predict")
    predicted = forecasts(configs, target)
    low, high = (
        np.array([getattr(forecast.step_seconds, end) for forecast in predicted]) for end in ("low", "high")
    )
    return Prior.from_columns(
        features([config.flat() for config in configs]) if columns is None else columns,
        -np.log([forecast.tokens_per_second for forecast in predicted]),
        np.log(high / low) / (2 * HALF_OF_90_PERCENT),
        np.array([forecast.out_of_memory_probability for forecast in predicted]),
        fills=np.array([forecast.memory_bytes.median for forecast in predicted]) / target.memory_bytes,
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


#: Of larger spaces so many points are drawn.
MOST = 1_000
#: A proposal of so many is the sampler's own.
SAMPLED = 4
#: Least gain that a proposal has to promise, as a share of the best throughput.
WORTH = 0.01


#: Makes the predictions of a space.
PriorMaker = Callable[[Space], "PredictionPrior | None"]


class PriorProposal(NamedTuple):
    """A point, and why it is next."""

    point: Point
    why: str


class PredictionPrior:
    """Predictions of a space on a target; they are worked out when they are first asked for. ``proposes``: they say
    what is next, too, not only whether anything runs.
    """

    def __init__(self, space: Space, target: Target, seed: int, proposes: bool = True) -> None:
        self._space, self._target, self._seed, self._proposes = space, target, seed, proposes

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """The exact candidates."""
        space = self._space
        if space.is_listed and len(space.legal_points) <= MOST:
            points: Sequence[Point] = space.legal_points
        else:
            random, keys, drawn = Random(self._seed), set[str](), list[Point]()
            while len(drawn) < MOST and (point := space.random_point(random, keys)) is not None:
                keys.add(point_key(point))
                drawn.append(point)
            points = drawn
        return tuple(point for point in points if not changes_result(space, point))

    @cached_property
    def prior(self) -> Prior | None:
        """What is believed of them; None where the target cannot tell."""
        space = self._space
        configs = [space.config(point) for point in self.points]
        flat_configs = [
            config.flat() | dict.fromkeys(space.automatic(point), AUTO)
            for config, point in zip(configs, self.points, strict=True)
        ]
        try:
            return prior_from_predictions(configs, self._target, features(flat_configs))
        except InputError:
            return None

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {point_key(point): row for row, point in enumerate(self.points)}

    def propose(self, state: StudyState, allows: Callable[[Point], bool]) -> PriorProposal | None:
        """The next point; None where it is the sampler's turn, or predictions promise nothing any more."""
        if not self._proposes or _proposals(state) % SAMPLED == SAMPLED - 1:
            return None
        prior = self.prior
        if prior is None:
            return None
        rows, values = self._measured_rows(state)
        measured = set(rows)
        pool = [row for row, point in enumerate(self.points) if row in measured or allows(point)]
        place = {row: number for number, row in enumerate(pool)}
        proposal = acquisition.propose(
            _take(prior, pool), Observations.from_lists([place[row] for row in rows], values)
        )
        if proposal is None:
            return None
        ran = any(np.isfinite(values))
        if ran and (proposal.fails >= HOPELESS or proposal.gain < WORTH):
            return None
        return PriorProposal(self.points[pool[proposal.row]], proposal.why)

    def nothing_runs(self, state: StudyState) -> InfeasibleSpace | None:
        """What is said of a space in which nothing ran so far; None while there is hope."""
        if not budgets.failed_trials(state):
            return None
        if self.prior is None:
            return budgets.infeasible_by_trials(state)
        words = acquisition.explain_infeasibility(
            self.prior, Observations.from_lists(*self._measured_rows(state))
        )
        return budgets.infeasible_by_prediction(words) if words else None

    def predicted_failures(self, state: StudyState) -> frozenset[str]:
        """Keys of the candidates that will most likely fail, by predictions as the trials corrected them: the sampler
        and first tries leave them out while others are left.
        """
        if not self._proposes or self.prior is None:
            return frozenset()
        skipped = acquisition.skipped_candidates(
            self.prior, Observations.from_lists(*self._measured_rows(state))
        )
        return frozenset(point_key(self.points[row]) for row in skipped)

    def record(self, state: StudyState) -> PredictionRecord | None:
        """How wrong predictions were so far, for the study's document."""
        if not self._proposes:
            return None
        rows, values = self._measured_rows(state)
        if self.prior is None or not rows:
            return None
        errors = prediction_errors(self.prior, Observations.from_lists(rows, values))._asdict()
        errors["within"] = errors["within"] if np.isfinite(errors["within"]) else None
        counts = {"candidates": len(self.points), "skipped": len(self.predicted_failures(state))}
        return PredictionRecord(**errors, **counts, source=self._target.constants_source)

    def _measured_rows(self, state: StudyState) -> tuple[list[int], list[float]]:
        measured = [
            (self._rows[key], seconds)
            for trial in state.trials
            if (key := point_key(self._space.canonical_point(trial.config))) in self._rows
            and (seconds := _log_seconds(trial)) is not None
        ]
        return [row for row, _ in measured], [seconds for _, seconds in measured]


def _log_seconds(trial: Trial) -> float | None:
    """Of a token; NaN where the configuration failed, None where nothing is known of it."""
    if trial.confirms is not None or trial.outcome is None:
        return None
    rate = trial.measured("tokens_per_second")
    if rate:
        return float(-np.log(rate))
    return float("nan") if any(value > 0 for value in trial.constraints.values()) else None


def _proposals(state: StudyState) -> int:
    return sum(trial.source in ("sampler", "prior") for trial in state.trials)


def _take(prior: Prior, rows: list[int]) -> Prior:
    """Some of its rows."""
    chosen = np.array(rows, np.intp)
    columns = {field.name: getattr(prior, field.name) for field in fields(prior)}
    selected: dict[str, Any] = {
        name: column[chosen] if isinstance(column, np.ndarray) else tuple(column[row] for row in rows)
        for name, column in columns.items()
    }
    return replace(prior, **selected)
