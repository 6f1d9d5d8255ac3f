"""Optuna's view of a study: a sampler that draws only legal, new points, told exactly what the journal says."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuning.sampling.samplers import make
from tuning.space.encoding import Encoding, Parameter
from tuning.space.points import Point, point_key
from tuning.space.space import Space, any_point
from tuning.spec.objectives import Aim
from tuning.storage.state import Trial

REDRAWS = 50
#: So many legal points are looked at when none of the redraws could be kept.
NEIGHBOURS = 64
#: Redrawing stops here even before, in seconds of the processor: the ranks are waiting. Not of the clock, for a busy
#: machine would cut it short and the search with it.
REDRAW_SECONDS = 0.4


@dataclass(frozen=True, slots=True)
class Draw:
    """A point to measure, as the sampler names it, and how many illegal ones were drawn before it; whose it is, why it
    was taken, and the ``group`` of knobs that is turned in this phase.
    """

    point: Point
    params: dict[str, Any]
    skipped_illegal: int
    source: str = "sampler"
    why: str = ""
    group: str = ""


class OptunaStudy:
    """Ask and tell over the trials of one study, in memory; of ``several`` aims where it has more than one."""

    def __init__(
        self,
        encoding: Encoding,
        seed: int,
        startup_trials: int,
        trials: int = 60,
        name: str = "tpe",
        aims: Sequence[Aim] = (),
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._encoding, self._several = encoding, aims
        self._random = Random(seed)
        self._sampler = LegalSampler(encoding, seed, make(name, seed, startup_trials, trials))
        self._study = optuna.create_study(sampler=self._sampler, directions=directions(aims))
        self._asked: optuna.trial.Trial | None = None
        self._elsewhere: dict[int, int] = {}

    def replace_sampler(self, name: str, seed: int, startup_trials: int, trials: int) -> None:
        """Let another sampler propose from here on; it sees what all others were told."""
        self._sampler.inner = make(name, seed, startup_trials, trials)

    def ask(
        self,
        visited: Collection[str],
        wanted: Callable[[Point], bool] = any_point,
        within: Space | None = None,
    ) -> Draw | None:
        """A legal point that was not visited; None when the space, or the part ``within`` it, is exhausted. What is
        unwanted comes last.
        """
        space = within or self._encoding.space
        fallback = space.random_point(self._random, visited, wanted)
        if fallback is None:
            wanted, fallback = any_point, space.random_point(self._random, visited)
        if fallback is None:
            return None
        if within is not None:
            wanted = _both(wanted, lambda point: space.problem(point) is None)
        self._sampler.prepare(
            visited, wanted, fallback, lambda: space.random_point(self._random, visited, wanted)
        )
        self._asked = self._study.ask(distributions(self._encoding))
        point = self._sampler.chosen
        return Draw(point, dict(self._asked.params), self._sampler.skipped_illegal)

    def runs_elsewhere(self, trial: Trial) -> None:
        """Keep away from a trial that another controller runs, as from our own that have no end yet."""
        params = self._encoding.encode(trial.config)
        if params is not None and trial.confirms is None and trial.number not in self._elsewhere:
            current = distributions(self._encoding)
            self._study.add_trial(
                create_trial(state=TrialState.RUNNING, params=params, distributions=current)
            )
            self._elsewhere[trial.number] = len(self._study.get_trials(deepcopy=False)) - 1

    def only_elsewhere(self, numbers: Collection[int]) -> None:
        """Forget trials of other controllers that are not among those: they were withdrawn."""
        for number in self._elsewhere.keys() - set(numbers):
            self._study.tell(self._elsewhere.pop(number), state=TrialState.FAIL)

    def tell(self, trial: Trial) -> None:
        """Take over how a journaled trial ended."""
        finished = to_frozen_trial(trial, self._encoding, self._several)
        if (placeholder := self._elsewhere.pop(trial.number, None)) is not None:
            self._study.tell(
                placeholder, state=TrialState.FAIL
            )  # samplers do not look at it; what it came to follows
        pending = self._asked
        if pending is not None and finished is not None and pending.params == trial.params:
            self._asked = None
            for name, violation in finished.constraints.items():
                pending.set_constraint(name, violation)
            self._study.tell(pending, finished.values, state=finished.state)
        elif finished is not None:
            self._study.add_trial(finished)


def _both(first: Callable[[Point], bool], second: Callable[[Point], bool]) -> Callable[[Point], bool]:
    return lambda point: first(point) and second(point)


class LegalSampler(BaseSampler):
    """One of Optuna's, drawing again while a point is illegal, known or unwanted; at last a legal one that is
    like the last draw.
    """

    def __init__(self, encoding: Encoding, seed: int, inner: BaseSampler) -> None:
        self._encoding = encoding
        self.inner = inner
        self._independent = RandomSampler(seed=seed)
        self._space = distributions(encoding)

    def prepare(
        self,
        visited: Collection[str],
        wanted: Callable[[Point], bool],
        fallback: Point,
        another: Callable[[], Point | None],
    ) -> None:
        """Set what the next draw must keep to; ``fallback`` is a legal, new point, and so is ``another`` one."""
        self._visited, self._wanted, self.chosen, self._another = visited, wanted, fallback, another
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
        deadline = time.thread_time() + REDRAW_SECONDS
        for _ in range(REDRAWS):
            drawn = self.inner.sample_relative(study, trial, search_space)
            if not drawn:  # too few trials so far: explore
                return self._encoding.encode(self.chosen) or {}
            drawn |= {  # what a genetic algorithm mutates is drawn anew
                name: self._independent.sample_independent(study, trial, name, kind)
                for name, kind in search_space.items()
                if name not in drawn
            }
            if self._keeps(drawn):
                break
            if time.thread_time() > deadline:
                self.chosen = self._nearest(drawn)
                break
        else:
            self.chosen = self._nearest(drawn)
        return self._encoding.encode(self.chosen) or {}

    def _nearest(self, drawn: dict[str, Any]) -> Point:
        """Of some legal, new points the one that is most like what the sampler wanted."""
        others = (self._another() for _ in range(NEIGHBOURS))
        points = [self.chosen, *(point for point in others if point is not None)]
        return min(
            points, key=lambda point: self._encoding.distance(self._encoding.encode(point) or {}, drawn)
        )

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """As the sampler wants it; some keep count of generations."""
        self.inner.before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """As the sampler wants it."""
        self.inner.after_trial(study, trial, state, values)

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


def directions(aims: Sequence[Aim]) -> list[StudyDirection]:
    """One value is kept so that larger is better; several are told in the units of their names."""
    down, up = StudyDirection.MINIMIZE, StudyDirection.MAXIMIZE
    return [down if aim.objective.lower else up for aim in aims] or [up]


def _values(trial: Trial, aims: Sequence[Aim]) -> list[float] | None:
    optional_values = [trial.measured(aim.name) for aim in aims] if aims else [trial.value]
    values = [value for value in optional_values if value is not None]
    return values if trial.value is not None and len(values) == len(optional_values) else None


def to_frozen_trial(trial: Trial, encoding: Encoding, aims: Sequence[Aim] = ()) -> FrozenTrial | None:
    """A journaled trial as Optuna keeps it; None for one that it has no business with.

    A failure about the configuration is a pruned trial with a broken constraint: TPE ranks it last, without a
    made-up value. A failure from outside says nothing, so it fails, and TPE does not look at it.
    """
    params = encoding.encode(trial.config)
    if trial.outcome is None or trial.confirms is not None or params is None:
        return None
    broken = any(violation > 0 for violation in trial.constraints.values())
    state, values = TrialState.FAIL, _values(trial, aims)
    if values is not None:
        state = TrialState.COMPLETE
    elif broken:
        state = TrialState.PRUNED
    frozen = create_trial(
        state=state,
        values=values,
        params=params,
        distributions=distributions(encoding),
        constraints=trial.constraints,
        user_attrs={"number": trial.number, "run": trial.run, "outcome": trial.outcome} | trial.config,
    )
    return _at_its_time(frozen, trial)


def _at_its_time(frozen: FrozenTrial, trial: Trial) -> FrozenTrial:
    """With the local time at which it began and ended, as Optuna keeps it; that of a study inherited is not known."""
    if trial.ended_unix is not None and trial.proposed_unix:
        frozen.datetime_start = datetime.fromtimestamp(trial.proposed_unix)
        frozen.datetime_complete = datetime.fromtimestamp(trial.ended_unix)
    return frozen
