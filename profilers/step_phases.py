"""Where measured steps spend their time: phases of the slowest rank, and skew between ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from profilers.records import PHASES
from profilers.step_join import JoinedSteps

#: Steps this close to the median are averaged.
TYPICAL_FRACTION = 0.05
#: How far the sum of the averaged phases may be from the median step.
SUM_FRACTION = 0.02


def slowest_seconds(measured: JoinedSteps) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The time of each step: that of the rank with the longest one."""
    return np.asarray(measured.values["step_seconds"].max(axis=0).filled(0.0))


def typical_phases(measured: JoinedSteps) -> dict[str, float]:
    """Seconds in each phase of a typical step, each step being seen on its slowest rank.

    Averaged over the steps within 5 % of the median. If these lie so unevenly around it that their mean is
    off by more than 2 %, the step (or two) in the middle is taken instead, whose mean is the median.
    """
    chosen = _typical_steps(slowest_seconds(measured))
    ranks = measured.values["step_seconds"].argmax(axis=0)[chosen]
    return {name: float(measured.values[f"{name}_seconds"][ranks, chosen].mean()) for name in PHASES}


def rank_skew(measured: JoinedSteps) -> tuple[float, int]:
    """Busiest minus least busy rank in seconds a step, and the busiest rank's number.

    Ranks that wait for each other end a step together, so skew is looked for in what they do themselves: the
    median of the step without exposed communication and bubble.
    """
    values = measured.values
    own_work = values["step_seconds"] - values["communication_exposed_seconds"] - values["bubble_seconds"]
    busy = np.median(own_work.filled(0.0), axis=1)
    return float(busy.max() - busy.min()), measured.ranks[int(busy.argmax())]


def _typical_steps(seconds: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    median = np.median(seconds)
    near = np.flatnonzero(np.abs(seconds - median) <= TYPICAL_FRACTION * median)
    if len(near) and abs(seconds[near].mean() - median) <= SUM_FRACTION * median:
        return near
    count = len(seconds)
    return np.argsort(seconds, kind="stable")[(count - 1) // 2 : count // 2 + 1]
