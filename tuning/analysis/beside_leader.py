"""What windows of a run that goes on say of a trial and the baseline, where these were not measured again. Pure.

A window is held beside the leader around it, A B B A; the leader's own was held beside the one before. Along that
chain their ratios multiply to one to the baseline, whatever the machine did between the windows. What loses something
is held beside the baseline, on the same steps: a chain of one link.
"""

from __future__ import annotations

import math

from profilers.analysis.statistics import Interval
from tuning.analysis.paired import interval
from tuning.spec.study_file import StudyFile
from tuning.storage.state import StudyState, Trial


def ranks(file: StudyFile) -> bool:
    """Whether windows taken in turns tell which trial of a study is better: those of a run that goes on do, where the
    time of a step decides.
    """
    return file.live is not None and file.aim.objective.by_time


def over_baseline(state: StudyState, trial: Trial, baseline: Trial | None, file: StudyFile) -> float | None:
    """A trial's value over the baseline's, as if the machine had been the same for both: by windows in turns, or at the
    level that the leader had around a window without such a chain. None of a study that is not ranked so.
    """
    if not trial.value or baseline is None or not baseline.value or not ranks(file):
        return None
    known = state.cache("over the baseline", baseline.number)
    if trial.number not in known:
        found = ratio(state, trial, baseline)
        alone = trial.value * (trial.leader_level or 1.0) / baseline.value
        known[trial.number] = alone if found is None else found.value
    over: float = known[trial.number]
    return over


def ratio(state: StudyState, trial: Trial, baseline: Trial) -> Interval | None:
    """Of a trial's rate over the baseline's, by turns alone; None where a link of the chain was not measured so.
    Without ends where one of them has none; the links' errors are independent, and add as squares.
    """
    middle, half = 0.0, 0.0
    while trial.config != baseline.config:
        leader = _leader(state, trial)
        if leader is None or trial.leader_ratio is None:
            return None
        middle += math.log(trial.leader_ratio)
        half = math.hypot(half, _half(trial))
        trial = leader
    return interval(middle, half)


def _leader(state: StudyState, trial: Trial) -> Trial | None:
    """Beside whom it was held: an earlier trial of the search."""
    found = None if trial.leader_trial is None else state.trial(trial.leader_trial)
    if found is not None and found.confirms is not None:
        found = state.trial(found.confirms)
    return found if found is not None and found.number < trial.number else None


def _half(trial: Trial) -> float:
    low, high = trial.leader_ratio_low, trial.leader_ratio_high
    return math.inf if low is None or high is None else math.log(high / low) / 2
