"""When several controllers share a study: what one of them may do now, and what it has to wait for. Pure."""

from __future__ import annotations

from collections.abc import Callable

from engine.run.ownership import Owner
from tuning.analysis import leaderboard
from tuning.search.policy import Step
from tuning.storage.state import StudyState, Trial

#: Whether another controller, one that lives, holds a lease.
HeldElsewhere = Callable[[Owner | None], bool]


def step_or_wait(step: Step, state: StudyState, held_elsewhere: HeldElsewhere) -> Step:
    """The step itself, or that it has to wait. The baseline is measured once and alone, for all else is judged by it;
    a confirmation by one controller while nothing else of the study runs, or its runs could not be compared.
    """
    why = _reason(step, state, held_elsewhere)
    return Step("wait", why=why) if why else step


def phase(state: StudyState) -> str:
    """What a study does while one of its controllers waits."""
    if any(trial.confirms is not None for trial in state.under_way or state.trials[-1:]):
        return "confirm"
    first = any(leaderboard.is_baseline(state, trial) for trial in state.under_way)
    return "baseline" if first else "search"


def _reason(step: Step, state: StudyState, held_elsewhere: HeldElsewhere) -> str:
    for trial in state.under_way:
        if trial.confirms is not None:
            return f"trial {trial.number} measures trial {trial.confirms} again, alone"
        if leaderboard.is_baseline(state, trial):
            return f"the baseline is measured first, as trial {trial.number}"
    if step.phase not in ("confirm", "done"):
        return ""
    if state.under_way:
        return f"{_trials(state.under_way)} must end before the best are measured again"
    if step.phase == "confirm" and held_elsewhere(_confirmer(state)):
        return "another controller measures the best again, alone"
    return ""


def _confirmer(state: StudyState) -> Owner | None:
    """Who measured the best again last, if nothing was searched since."""
    newest = state.trials[-1]
    return newest.lease if newest.confirms is not None else None


def _trials(trials: tuple[Trial, ...]) -> str:
    numbers = ", ".join(str(trial.number) for trial in trials)
    return f"trial {numbers}" if len(trials) == 1 else f"trials {numbers}"
