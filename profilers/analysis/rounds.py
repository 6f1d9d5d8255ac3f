"""The wall time of steps and of whole rounds of local SGD, from which every rate of a run is made. Pure.

Replicas that average their weights once in ``period`` steps wait once in ``period`` steps. A median over steps never
sees that wait, and a mean over some of a round's steps sees it too often or too seldom. So what is measured is cut
into stretches of ``period`` steps one after the other: each holds one exchange, wherever it begins. Without an outer
loop a round is one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from profilers.analysis.steps import JoinedSteps

_Floats = np.ndarray[Any, np.dtype[np.float64]]


#: Less is not worth a cut: counters of energy are read ten times a second at the most.
LEAST_ASIDE = 0.05


def wall_seconds(steps: JoinedSteps) -> _Floats:
    """Seconds of each step and of what came between it and the step before; the mean over ranks: [steps].

    Between two steps compression is planned and records are written; evaluation, checkpoints and orders are left out.
    The mean over ranks sums to the time that passed, however far ranks drift apart within a round; the sum of each
    step's slowest rank would not.
    """
    step_seconds, between = steps.values["step_seconds"], steps.values["between_seconds"]
    return np.asarray((step_seconds + between.filled(0.0)).mean(axis=0).filled(0.0))


def mean_gap_seconds(steps: JoinedSteps) -> float:
    """Mean seconds between a step and the one before, of what counts; there is at least one step."""
    return float(steps.values["between_seconds"].filled(0.0).mean())


class StepRange(NamedTuple):
    """Steps one after the other: Unix times of the first one's begin and the last one's end, and how many they are."""

    begin: float
    end: float
    steps: int


def stretches(measured: JoinedSteps) -> list[StepRange]:
    """The measured steps without what is no part of training: cut where evaluation, a checkpoint or an order took
    longer than ``LEAST_ASIDE``, and where steps lie between that do not count.
    """
    start, length = measured.values["start_unix"], measured.values["step_seconds"]
    between = measured.values["between_seconds"]
    idle = start[:, 1:] - start[:, :-1] - length[:, :-1]
    aside = np.asarray((idle - between[:, 1:]).mean(axis=0).filled(0.0))
    cuts = np.flatnonzero((aside > LEAST_ASIDE) | (np.diff(measured.steps) != 1)) + 1
    parts = (measured.select(places) for places in np.split(np.arange(len(measured.steps)), cuts))
    return [StepRange(*part.span, len(part.steps)) for part in parts if len(part.steps)]


class Rounds(NamedTuple):
    """``seconds`` of each whole round [rounds], and the ``steps`` that they are made of, ``period`` of them each."""

    seconds: _Floats
    steps: JoinedSteps
    period: int


def whole_rounds(measured: JoinedSteps, period: int) -> Rounds:
    """As many whole rounds as the measured steps hold; steps that lack a neighbour, and a rest, are left out."""
    numbers = measured.steps
    chosen = np.zeros(len(numbers), dtype=bool)
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    for places in np.split(np.arange(len(numbers)), breaks):
        chosen[places[: len(places) // period * period]] = True
    steps = measured.select(chosen)
    return Rounds(wall_seconds(steps).reshape(-1, period).sum(axis=1), steps, period)


#: Steps that a current rate is taken over, at the least.
RECENT_STEPS = 20


def recent_steps(outer: Mapping[str, Any] | None) -> int:
    """The last steps that say how fast a run is now: whole rounds by its section ``outer``, 20 steps without one."""
    period = round_steps(outer)
    return -(-RECENT_STEPS // period) * period


def round_steps(outer: Mapping[str, Any] | None) -> int:
    """Steps from one exchange of an outer loop to the next, by its section; 1 without one."""
    outer = outer or {}
    return 1 if outer.get("method", "none") == "none" else max(1, int(outer.get("period") or 1))
