"""How a study's values depend on each knob, and what each neighbour of the winner loses, as measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tuning.analysis import comparison, confirmation, leaderboard
from tuning.sensitivity import data
from tuning.space.knobs import Knob
from tuning.space.points import Point, point_key
from tuning.space.space import Space
from tuning.spec.study_file import StudyFile
from tuning.storage.state import StudyState, Trial


@dataclass(frozen=True, slots=True)
class ValueRow:
    """What was measured at one value of a knob, and what a model predicts there, if there is one."""

    value: Any
    trials: int
    failed: int
    mean: float | None
    best: float | None
    predicted: float | None = None


@dataclass(frozen=True, slots=True)
class KnobRow:
    """The values of a knob that trials had in which it acted; ``reason``: why they cannot be compared."""

    key: str
    trials: int
    reason: str
    values: list[ValueRow]


def dependence(state: StudyState, space: Space) -> list[KnobRow]:
    """A row for each knob.

    A trial counts for a knob only where the knob acts; values of a range are put to the nearest of its grid. Means are
    of whatever else the search tried with a value, so they are no effect of the value alone.
    """
    measured, judged = data.measured_trials(state), data.judged_trials(state)
    broken = [trial for trial, bad in judged if bad]
    return [_of_knob(knob, space, measured, broken) for knob in space.knobs]


def _of_knob(knob: Knob, space: Space, measured: Sequence[Trial], broken: Sequence[Trial]) -> KnobRow:
    measured_by_value, broken_by_value = (_by_value(knob, space, trials) for trials in (measured, broken))
    rows = [
        _row(value, measured_by_value.get(value, []), broken_by_value.get(value, []))
        for value in data.sort_values(knob, [*measured_by_value, *broken_by_value])
    ]
    acting = sum(row.trials for row in rows)
    return KnobRow(knob.key, acting, _reason(rows, acting), rows)


def _by_value(knob: Knob, space: Space, trials: Sequence[Trial]) -> dict[Any, list[Trial]]:
    values = [space.remember("acting", trial.config, space.acting_values) for trial in trials]
    acting = [
        (trial, point[knob.key]) for trial, point in zip(trials, values, strict=True) if knob.key in point
    ]
    trials_by_value: dict[Any, list[Trial]] = {}
    for (trial, _), value in zip(acting, nearest(knob, [value for _, value in acting]), strict=True):
        trials_by_value.setdefault(value, []).append(trial)
    return trials_by_value


def nearest(knob: Knob, values: Sequence[Any]) -> Sequence[Any]:
    """The values themselves, or of a range the nearest ones on its grid."""
    if not knob.is_range:
        return values
    grid = knob.grid()
    return [value if value is None else min(grid, key=lambda point: abs(point - value)) for value in values]


def _row(value: Any, measured_trials: Sequence[Trial], broken_trials: Sequence[Trial]) -> ValueRow:
    measured = [trial.value for trial in measured_trials if trial.value is not None]
    mean = sum(measured) / len(measured) if measured else None
    return ValueRow(value, len(measured), len(broken_trials), mean, max(measured, default=None))


def _reason(rows: Sequence[ValueRow], acting: int) -> str:
    if not acting:
        return "it acted in no measured trial"
    if sum(1 for row in rows if row.trials) < 2:
        return "it had one value in every measured trial in which it acted"
    return ""


Stands = Literal["measured", "failed", "predicted", "unknown", "illegal"]
#: Better evidence is told first.
ORDER: tuple[Stands, ...] = ("measured", "failed", "predicted", "unknown", "illegal")


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The winner with ``key`` at another value. ``loss_percent`` is of the winner's value, with its 95 % interval;
    below 0 the neighbour is better. ``stands``: what it stands on. ``repeated``: whether the interval counts what runs
    of one configuration differ by, not only the steps of single runs.
    """

    key: str
    winner_value: Any
    value: Any
    stands: Stands
    config: Point | None = None
    trials: tuple[int, ...] = ()
    loss_percent: float | None = None
    low_percent: float | None = None
    high_percent: float | None = None
    reason: str = ""
    repeated: bool | None = None

    @property
    def place(self) -> tuple[int, float, str]:
        """Its place in a list: the better known first, then the larger loss."""
        return ORDER.index(self.stands), -(self.loss_percent or 0.0), self.key


def neighbours(state: StudyState, file: StudyFile) -> list[Neighbour]:
    """Of the best trial so far, the largest measured loss first; empty while nothing was measured."""
    winner = confirmation.winner(state, file)
    if winner is None:
        return []
    space = file.search_space
    point = space.canonical_point(winner.config)
    trials_by_point = _trials_by_point(state, space)
    rows = [
        _neighbour(state, file, winner, (knob.key, point.get(knob.key), value), trials_by_point)
        for knob in space.knobs
        if knob.key in point and space.is_active(knob.key, point)
        for value in _steps(knob, point, trials_by_point)
    ]
    return sorted((row for row in rows if row is not None), key=lambda row: row.place)


def _trials_by_point(state: StudyState, space: Space) -> dict[str, list[Trial]]:
    trials_by_point: dict[str, list[Trial]] = {}
    for trial in state.trials:
        if trial.confirms is None:
            trials_by_point.setdefault(point_key(space.canonical_point(trial.config)), []).append(trial)
    return trials_by_point


def _steps(knob: Knob, point: Point, trials_by_point: dict[str, list[Trial]]) -> list[Any]:
    """Every other value of a category, the next either way of a number; of a range what was tried, else its grid."""
    now = point[knob.key]
    if not data.is_number(knob):
        return [choice for choice in knob.choices if choice != now]
    tried = _tried_values(knob, point, trials_by_point) if knob.is_range else set()
    (tried_below, tried_above), (below, above) = (
        _adjacent_values(data.sort_values(knob, [*pool, now]), now) for pool in (tried, knob.grid())
    )
    return [*(tried_below or below), *(tried_above or above)]


def _adjacent_values(line: list[Any], now: Any) -> tuple[list[Any], list[Any]]:
    place = line.index(now)
    return line[max(0, place - 1) : place], line[place + 1 : place + 2]


def _tried_values(knob: Knob, point: Point, trials_by_point: dict[str, list[Trial]]) -> set[Any]:
    """Values of a range that were tried with everything else as in the point."""
    others = {key: value for key, value in point.items() if key != knob.key}
    trials = (trial for group in trials_by_point.values() for trial in group if trial.value is not None)
    return {
        trial.config[knob.key]
        for trial in trials
        if knob.key in trial.config and trial.config | others == trial.config
    }


def _neighbour(
    state: StudyState,
    file: StudyFile,
    winner: Trial,
    step: tuple[str, Any, Any],
    trials_by_point: dict[str, list[Trial]],
) -> Neighbour | None:
    """None where the step leads to the very same run."""
    key, _, value = step
    moved, broken = data.move_point(
        file.search_space, file.search_space.canonical_point(winner.config), key, value
    )
    if moved is None:
        return Neighbour(*step, "illegal", reason=broken) if broken else None
    trials = trials_by_point.get(point_key(moved), [])
    good = [trial for trial in trials if (trial.value or 0.0) > 0]
    if good:
        numbers = tuple(trial.number for trial in good)
        neighbour = Neighbour(*step, "measured", moved, numbers)
        return _with_loss(neighbour, state, winner, good, file.seed)
    bad = [trial for trial in trials if data.has_failed(trial)]
    if bad:
        reason = bad[-1].reason or str(bad[-1].outcome).replace("_", " ")
        return Neighbour(*step, "failed", moved, tuple(trial.number for trial in bad), reason=reason)
    return Neighbour(*step, "unknown", moved)


def _with_loss(
    neighbour: Neighbour, state: StudyState, winner: Trial, others: Sequence[Trial], seed: int
) -> Neighbour:
    """In percent of the winner's value: of the runs that measured both again, if there are some, else of the search's,
    for these are of another time.
    """
    own_trials, repeated = (
        _valid_confirmations(state, winner),
        [run for trial in others for run in _valid_confirmations(state, trial)],
    )
    own_trials, others = (own_trials, repeated) if own_trials and repeated else ([winner], others)
    if not all(trial.samples for trial in [*own_trials, *others]):
        return replace(neighbour, loss_percent=100 * (1 - _mean(others) / _mean(own_trials)))
    base, arm = [trial.samples for trial in own_trials], [trial.samples for trial in others]
    compared = comparison.compare_runs(base, arm, seed)
    return replace(
        neighbour,
        loss_percent=_loss_percent(compared.ratio.value),
        low_percent=_loss_percent(compared.ratio.low),
        high_percent=_loss_percent(compared.ratio.high),
        repeated=compared.repeated,
    )


def _valid_confirmations(state: StudyState, trial: Trial) -> list[Trial]:
    return [run for run in leaderboard.confirmations(state, trial) if (run.value or 0.0) > 0]


def _loss_percent(ratio: float | None) -> float | None:
    """The winner's value over another's, as percent that the other loses."""
    return None if ratio is None else 100 * (1 - 1 / ratio)


def _mean(trials: Sequence[Trial]) -> float:
    values = [trial.value for trial in trials if trial.value]
    return sum(values) / len(values)
