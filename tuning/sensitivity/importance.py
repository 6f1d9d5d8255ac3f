"""Which knobs mattered in a study: PED-ANOVA over its measured trials."""

from __future__ import annotations

from typing import Any

from tuning.sensitivity import pedanova
from tuning.sensitivity.outcomes import Importance
from tuning.space.knobs import Knob
from tuning.space.points import Point
from tuning.space.space import Space
from tuning.storage.state import StudyState

MINIMUM_TRIALS = 8
#: PED-ANOVA compares the best trials with all; fewer than this many best ones say nothing.
BEST_TRIALS = 3


def importance(state: StudyState, space: Space) -> Importance:
    """The shares, or why there are none yet."""
    trials = [trial for trial in state.trials if trial.value is not None and trial.confirms is None]
    if len(trials) < MINIMUM_TRIALS:
        words = f"needs {MINIMUM_TRIALS} measured trials; there are {len(trials)}"
        return Importance(None, words, len(trials))
    points = [_active_values(trial.config, space) for trial in trials]
    quantile = min(0.5, max(0.1, BEST_TRIALS / len(points)))
    shares = pedanova.shares(points, [trial.value or 0.0 for trial in trials], space.by_key, quantile)
    return Importance(shares, "", len(trials))


def _active_values(config: Point, space: Space) -> Point:
    """A knob counts only where it acts, which PED-ANOVA knows how to weigh."""
    acting = space.remember("acting", config, space.acting_values)
    return {key: value for key, value in acting.items() if key in space.by_key}


def build_study(points: list[tuple[Point, float]], space: Space) -> Any:
    """An Optuna study in memory whose trials are points and their values."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize")
    values_by_key: dict[str, set[Any]] = {}
    for point, _ in points:
        for key, value in point.items():
            values_by_key.setdefault(key, set()).add(value)
    kinds = {key: _distribution(space.by_key[key], values_by_key[key]) for key in values_by_key}
    for point, value in points:
        used = {key: kinds[key] for key in point}
        study.add_trial(
            _skip_deepcopy(optuna.trial.create_trial(value=value, params=point, distributions=used))
        )
    return study


def _skip_deepcopy(trial: Any) -> Any:
    """Optuna copies each trial that it is given, deeply: thousands take seconds, and these are nobody else's."""
    vars(trial)["__deepcopy__"] = lambda _: trial
    return trial


def _distribution(knob: Knob, values: set[Any]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if knob.low is not None and knob.high is not None:
        return FloatDistribution(knob.low, knob.high, log=knob.log)
    return CategoricalDistribution(sorted(values, key=str))
