"""What a study's trials can be asked: those that measured something, and those that say whether a point runs. Pure."""

from __future__ import annotations

from engine.run.outcome import Ending
from tuning import ranking
from tuning.points import Point
from tuning.space import Space
from tuning.state import StudyState, Trial

_RAN = (Ending.COMPLETED, Ending.PRUNED)


def ended(state: StudyState) -> int:
    """How many trials have an end; what is worked out from them is kept under this number."""
    return sum(1 for trial in state.trials if trial.outcome is not None)


def measured(state: StudyState) -> list[Trial]:
    """Trials of the search with a value above 0, of which a logarithm can be taken."""
    return [trial for trial in ranking.measured(state) if (trial.value or 0.0) > 0]


def failed(trial: Trial) -> bool | None:
    """Whether a trial's configuration failed; None where its ending says nothing about the configuration."""
    if trial.confirms is not None or trial.outcome is None:
        return None
    if trial.constraints.get(trial.outcome, 0.0) > 0:
        return True
    return False if trial.outcome in _RAN else None


def judged(state: StudyState) -> list[tuple[Trial, bool]]:
    """Trials whose ending speaks about the configuration, and whether they failed."""
    found = ((trial, failed(trial)) for trial in state.trials)
    return [(trial, bad) for trial, bad in found if bad is not None]


def knobs_at(space: Space, trial: Trial) -> Point:
    """The turned knobs of a trial, also those at rest; what this version does not know is left out."""
    point = space.base_values | space.settled(trial.config)
    return {knob.key: point[knob.key] for knob in space.knobs}
