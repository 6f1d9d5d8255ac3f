"""Optuna's view of a study: a sampler that draws only legal, new points, told exactly what the journal says."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuning.aims import Aim
from tuning.encoding import Encoding, Parameter
from tuning.points import Point, point_key
from tuning.space import everything
from tuning.state import Trial

REDRAWS = 50
#: Redrawing stops here even before: the ranks are waiting.
REDRAW_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Draw:
    """A point to measure, as the sampler names it, and how many illegal ones were drawn before it."""

    point: Point
    params: dict[str, Any]
    skipped_illegal: int


class Index:
    """Ask and tell over the trials of one study, in memory; of ``several`` aims where it has more than one."""

    def __init__(
        self, encoding: Encoding, seed: int, startup_trials: int, several: Sequence[Aim] = ()
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._encoding, self._several = encoding, several
        self._random = Random(seed)
        self._sampler = LegalSampler(encoding, seed, startup_trials)
        self._study = optuna.create_study(sampler=self._sampler, directions=directions(several))
        self._asked: optuna.trial.Trial | None = None

    def ask(self, visited: Collection[str], wanted: Callable[[Point], bool] = everything) -> Draw | None:
        """A legal point that was not visited; None when the space is exhausted. What is unwanted comes last."""
        space = self._encoding.space
        fallback = space.random_point(self._random, visited, wanted)
        if fallback is None:
            wanted, fallback = everything, space.random_point(self._random, visited)
        if fallback is None:
            return None
        self._sampler.prepare(visited, wanted, fallback)
        self._asked = self._study.ask(distributions(self._encoding))
        point = self._sampler.chosen
        return Draw(point, dict(self._asked.params), self._sampler.skipped_illegal)

    def tell(self, trial: Trial) -> None:
        """Take over how a journaled trial ended."""
        finished = frozen(trial, self._encoding, self._several)
        asked, self._asked = self._asked, None
        if asked is not None and finished is not None and asked.params == trial.params:
            for name, violation in finished.constraints.items():
                asked.set_constraint(name, violation)
            self._study.tell(asked, finished.values, state=finished.state)
        elif finished is not None:
            self._study.add_trial(finished)


class LegalSampler(BaseSampler):
    """TPE, drawing again while a point is illegal, known or unwanted; at last a random legal one."""

    def __init__(self, encoding: Encoding, seed: int, startup_trials: int) -> None:
        self._encoding = encoding
        # One controller asks for one point at a time: there is no other worker to tell lies to.
        self._tpe = TPESampler(seed=seed, n_startup_trials=startup_trials, constant_liar=False)
        self._independent = RandomSampler(seed=seed)
        self._space = distributions(encoding)

    def prepare(self, visited: Collection[str], wanted: Callable[[Point], bool], fallback: Point) -> None:
        """Set what the next draw must keep to; ``fallback`` is a legal, new point."""
        self._visited, self._wanted, self.chosen = visited, wanted, fallback
        self.skipped_illegal = 0

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Always the whole space: it does not change inside a study."""
        return self._space

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of the point that is kept in ``chosen``."""
        deadline = time.monotonic() + REDRAW_SECONDS
        for _ in range(REDRAWS):
            drawn = self._tpe.sample_relative(study, trial, search_space)
            if not drawn:  # too few trials so far: explore
                break
            if self._keeps(drawn) or time.monotonic() > deadline:
                break
        return self._encoding.encode(self.chosen) or {}

    def _keeps(self, drawn: dict[str, Any]) -> bool:
        point = self._encoding.decode(drawn)
        if point is None or self._encoding.space.problem(point):
            self.skipped_illegal += 1
            return False
        if point_key(point) in self._visited or not self._wanted(point):
            return False
        self.chosen = point
        return True

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Only for a caller that suggests something of its own."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)


def distributions(encoding: Encoding) -> dict[str, BaseDistribution]:
    """The fixed distributions of a space."""
    return {parameter.name: _distribution(parameter) for parameter in encoding.parameters}


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.kind == "category":
        return CategoricalDistribution(parameter.choices)
    if parameter.kind == "integer":
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.log)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log)


def directions(several: Sequence[Aim]) -> list[StudyDirection]:
    """One value is kept so that larger is better; several are told in the units of their names."""
    down, up = StudyDirection.MINIMIZE, StudyDirection.MAXIMIZE
    return [down if aim.objective.lower else up for aim in several] or [up]


def _values(trial: Trial, several: Sequence[Aim]) -> list[float] | None:
    one = (
        [trial.value]
        if not several
        else [(trial.measures.get(aim.name) or {}).get("value") for aim in several]
    )
    known = [value for value in one if value is not None]
    return known if trial.value is not None and len(known) == len(one) else None


def frozen(trial: Trial, encoding: Encoding, several: Sequence[Aim] = ()) -> FrozenTrial | None:
    """A journaled trial as Optuna keeps it; None for one that it has no business with.

    A failure about the configuration is a pruned trial with a broken constraint: TPE ranks it last, without a
    made-up value. A failure from outside says nothing, so it fails, and TPE does not look at it.
    """
    params = encoding.encode(trial.config)
    if trial.outcome is None or trial.confirms is not None or params is None:
        return None
    broken = any(violation > 0 for violation in trial.constraints.values())
    state, values = TrialState.FAIL, _values(trial, several)
    if values is not None:
        state = TrialState.COMPLETE
    elif broken:
        state = TrialState.PRUNED
    return create_trial(
        state=state,
        values=values,
        params=params,
        distributions=distributions(encoding),
        constraints=trial.constraints,
        user_attrs={"number": trial.number, "run": trial.run, "outcome": trial.outcome} | trial.config,
    )
