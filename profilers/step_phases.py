"""Where measured steps spend their time: phases of the slowest rank, and skew between ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

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


class Typical(NamedTuple):
    """Places of the steps that a typical one is averaged over, and of the slowest rank of each."""

    steps: np.ndarray[Any, np.dtype[np.int64]]
    ranks: np.ndarray[Any, np.dtype[np.int64]]


def typical(measured: JoinedSteps) -> Typical:
    """The steps within 5 % of the median, each seen on its slowest rank.

    If these lie so unevenly around the median that their mean is off by more than 2 %, the step (or two) in the middle
    is taken instead, whose mean is the median.
    """
    chosen = _typical_steps(slowest_seconds(measured))
    return Typical(chosen, measured.values["step_seconds"].argmax(axis=0)[chosen])


def typical_phases(measured: JoinedSteps) -> dict[str, float]:
    """Seconds in each phase of a typical step."""
    chosen, ranks = typical(measured)
    return {name: float(measured.values[f"{name}_seconds"][ranks, chosen].mean()) for name in PHASES}


def rank_skew(measured: JoinedSteps) -> tuple[float, int]:
    """Busiest minus least busy rank in seconds a step, and the busiest rank's number; medians over steps."""
    busy = np.median(busy_seconds(measured), axis=1)
    return float(busy.max() - busy.min()), measured.ranks[int(busy.argmax())]


def busy_seconds(measured: JoinedSteps) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What ranks do themselves in each step: the step without exposed communication and bubble, [ranks, steps].

    Ranks that wait for each other end a step together, so skew between them is looked for in this.
    """
    values = measured.values
    own_work = values["step_seconds"] - values["communication_exposed_seconds"] - values["bubble_seconds"]
    return np.asarray(own_work.filled(0.0))


def _typical_steps(seconds: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    median = np.median(seconds)
    near = np.flatnonzero(np.abs(seconds - median) <= TYPICAL_FRACTION * median)
    if len(near) and abs(seconds[near].mean() - median) <= SUM_FRACTION * median:
        return near
    count = len(seconds)
    return np.sort(np.argsort(seconds, kind="stable")[(count - 1) // 2 : count // 2 + 1])
