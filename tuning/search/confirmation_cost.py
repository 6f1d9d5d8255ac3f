"""What measuring again takes: the length of a whole run, also of a trial that was pruned, and of the next window. Pure.

Nothing that confirms is pruned. Where most trials of a search are, what one of them took says little of a confirmation.
"""

from __future__ import annotations

from statistics import median

from engine.run.outcome import Ending
from tuning.analysis import confirmation
from tuning.spec.study_file import StudyFile
from tuning.storage.state import StudyState, Trial


def whole_seconds(state: StudyState, file: StudyFile, trial: Trial) -> float:
    """What a trial of the search takes that is not pruned. One of a command, which has its share of the budget of time,
    takes no longer than the longest that was whole.
    """
    if trial.outcome != Ending.PRUNED.value:
        return trial.seconds
    longest = max(_whole(state), default=trial.seconds)
    step = _step_seconds(trial)
    if not step:
        return max(trial.seconds, longest)
    missing = confirmation.trial_steps(state, file, trial) - trial.steps
    full = trial.seconds + max(0, missing) * step
    return full if file.trainer is None else max(trial.seconds, min(full, longest))


def window_seconds(state: StudyState, file: StudyFile, trial: Trial) -> float:
    """What the next window of a trial takes: what its windows took before, else by its steps, and no longer than all of
    it. Where a study is played, seconds that pass are not those that its steps tell.
    """
    before = [
        run.seconds
        for run in state.trials
        if run.confirms == trial.number and run.round is not None and run.outcome is not None
    ]
    if before:
        return median(before)
    steps, step = confirmation.window_steps(state, file, trial), _step_seconds(trial)
    whole = whole_seconds(state, file, trial)
    if steps is None or not step:
        return whole
    return min(whole, confirmation.overhead_seconds(state) + steps * step)


def usual_seconds(state: StudyState) -> float:
    """Of a trial that was not pruned, as far as there is one; 0 before any ended."""
    return median(_whole(state) or [trial.seconds for trial in _ended_trials(state)] or [0.0])


def _whole(state: StudyState) -> list[float]:
    return [trial.seconds for trial in _ended_trials(state) if trial.outcome != Ending.PRUNED.value]


def _ended_trials(state: StudyState) -> list[Trial]:
    return [trial for trial in state.trials if trial.outcome is not None and trial.confirms is None]


def _step_seconds(trial: Trial) -> float:
    return float(trial.measured("step_seconds") or 0.0)
