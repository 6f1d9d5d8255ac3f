"""What windows of a run that goes on say of a trial and the baseline, where these were not measured again. Pure.

A window is held beside the leader around it, A B B A; the leader's own was held beside the one before. Along that
chain their ratios multiply to one to the baseline, whatever the machine did between the windows. What loses something
is held beside the baseline, on the same steps: a chain of one link.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from profilers.analysis.statistics import Interval
from tuning.analysis.paired_comparison import interval
from tuning.spec.study_file import StudyFile
from tuning.storage.state import StudyState, Trial


def ranks(file: StudyFile) -> bool:
    """Whether windows taken in turns tell which trial of a study is better: those of a run that goes on do, where the
    time of a step decides.
    """
    return file.live is not None and file.aim.objective.by_time


def ratio_to_baseline(
    state: StudyState, trial: Trial, baseline: Trial | None, file: StudyFile
) -> float | None:
    """A trial's value over the baseline's, as if the machine had been the same for both. None of a study that is not
    ranked so.
    """
    if not trial.value or baseline is None or not baseline.value or not ranks(file):
        return None
    cached = state.cache("over the baseline", baseline.number)
    if trial.number not in cached:
        cached[trial.number] = chain(state, trial, baseline).ratio_to(baseline)
    over: float = cached[trial.number]
    return over


@dataclass(frozen=True, slots=True)
class Chain:
    """Windows in turns, from that of the ``first_trial`` on: by the logarithm ``middle`` a trial is ahead of
    it, within ``half``.
    """

    first_trial: Trial
    middle: float
    half: float

    @property
    def interval(self) -> Interval:
        """Of the rate over that of the first window; without ends where a link has none."""
        return interval(self.middle, self.half)

    def ratio_to(self, baseline: Trial) -> float:
        """The rate over the baseline's: a first window of others counts at the level that the leader had around it."""
        if self.first_trial.config == baseline.config:
            return math.exp(self.middle)
        level = self.first_trial.leader_level or 1.0
        return math.exp(self.middle) * level * (self.first_trial.value or 0.0) / (baseline.value or 1.0)


def chain(state: StudyState, trial: Trial, baseline: Trial) -> Chain:
    """From a trial back to the baseline, or as far as there are links; their errors are independent, and add as
    squares.
    """
    middle, half = 0.0, 0.0
    while trial.config != baseline.config:
        leader = _leader(state, trial)
        if leader is None or trial.leader_ratio is None:
            break
        middle += math.log(trial.leader_ratio)
        half = math.hypot(half, _half(trial))
        trial = leader
    return Chain(trial, middle, half)


def _leader(state: StudyState, trial: Trial) -> Trial | None:
    """Beside whom it was held: an earlier trial of the search."""
    leader = None if trial.leader_trial is None else state.trial(trial.leader_trial)
    if leader is not None and leader.confirms is not None:
        leader = state.trial(leader.confirms)
    return leader if leader is not None and leader.number < trial.number else None


def _half(trial: Trial) -> float:
    low, high = trial.leader_ratio_low, trial.leader_ratio_high
    return math.inf if low is None or high is None else math.log(high / low) / 2
