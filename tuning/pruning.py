"""Whether a trial may end before its last step: it cannot reach the leader any more, or its steps have settled. Pure.

A trial is looked at when ``least_steps`` steps are measured, then at twice as many, and so on. Whoever looks several
times at growing data and stops at the first finding is wrong more often than each look says. So each of the K looks of
a trial has its own level: 1 - 0.05 / K (Bonferroni), with which all of them together hold with 95 % however they depend
on each other. Doubling keeps K small (Maron and Moore 1994, "Hoeffding races", race at a shared level in this way;
Mnih, Szepesvari and Audibert 2008 take looks at powers); limits as large for every look are those of Pocock 1977.

An interval is of the median of the logarithms: Student's t on their standard deviation after clipping hiccups, times
sqrt(pi / 2), which is what a median costs beside a mean, widened for steps that resemble the step before. What all
steps of a run share, the noise from run to run, no number of steps shows. It is added to both sides of the race.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.run.outcome import EarlyEnd, Ending
from profilers.analysis.warmup import MINIMUM_STEPS, warmup_steps
from tuning.confidence import NORMAL
from tuning.quantiles import student

ERROR = 0.05
#: As in ``profilers/analysis/warmup.py``: a hiccup counts as so many deviations, and a tenth of a step at the least.
_CLIP_DEVIATIONS, _CLIP_LEAST = 5.0, 0.1
_NORMAL_DEVIATION = 1.4826
_MOST_ALIKE = 0.9


@dataclass(frozen=True, slots=True)
class Rules:
    """When to look, and what is narrow enough. ``spread`` is the noise from run to run, a standard deviation of
    logarithms.
    """

    looks: tuple[int, ...]
    settle: float
    spread: float

    @property
    def level(self) -> float:
        """Of one look."""
        return 1 - ERROR / len(self.looks)


@dataclass(frozen=True, slots=True)
class Leader:
    """The best trial so far: its number, and the logarithms of its tokens per second, one for each step."""

    number: int
    logs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """What a running trial recorded: seconds of each step from the first one, ``left_out`` of them not measured."""

    seconds: tuple[float, ...]
    left_out: int

    @property
    def measured(self) -> int:
        """Steps that count."""
        return max(0, len(self.seconds) - self.left_out)


def looks(least: int, steps: int) -> tuple[int, ...]:
    """Numbers of measured steps at which to look: ``least``, then doubled, while there is something left to save."""
    found = []
    while least < steps - 1:
        found.append(least)
        least *= 2
    return tuple(found)


def decide(steps: Steps, tokens: int, rules: Rules, leader: Leader | None) -> EarlyEnd | None:
    """How a trial ends at this look, or None to go on. ``tokens`` are those of a step.

    Where the steps tell of more warm-up than was left out, that is left out, too; of a trial that still drifts
    nothing is decided.
    """
    warm = warm_up(steps)
    if warm is None or len(steps.seconds) - warm < rules.looks[0]:
        return None
    logs = np.log(tokens / np.asarray(steps.seconds[warm:]))
    middle, half = interval(logs, rules.level)
    if leader is not None:
        best = math.exp(middle + math.hypot(half, NORMAL * rules.spread))
        worst = least_of(leader, rules.spread)
        if best < worst:
            return EarlyEnd(Ending.PRUNED, _behind(len(logs), best, worst, leader.number))
    if len(steps.seconds) >= MINIMUM_STEPS and half <= math.log1p(rules.settle):
        return EarlyEnd(Ending.COMPLETED, f"settled after {len(logs)} steps, to within {100 * half:.1f} %")
    return None


def warm_up(steps: Steps) -> int | None:
    """Steps at the start to leave out; None while they have not come to rest. Too few to tell are believed."""
    if len(steps.seconds) < MINIMUM_STEPS:
        return steps.left_out
    found = warmup_steps(steps.seconds)
    return None if found is None else max(found, steps.left_out)


def least_of(leader: Leader, spread: float) -> float:
    """Tokens per second that the leader reaches at the least, at 95 %, noise from run to run included."""
    middle, half = interval(np.asarray(leader.logs), 1 - ERROR)
    return math.exp(middle - math.hypot(half, NORMAL * spread))


def logs_of(samples: Sequence[float]) -> tuple[float, ...]:
    """Logarithms of values above 0."""
    return tuple(math.log(sample) for sample in samples if sample > 0)


def interval(logs: np.ndarray[tuple[int], np.dtype[np.float64]], level: float) -> tuple[float, float]:
    """The median, and how far to each side of it the interval reaches; endless of a single value."""
    middle = float(np.median(logs))
    if len(logs) < 2:
        return middle, math.inf
    reach = max(_CLIP_DEVIATIONS * _NORMAL_DEVIATION * float(np.median(np.abs(logs - middle))), _CLIP_LEAST)
    clipped = np.clip(logs, middle - reach, middle + reach)
    error = float(clipped.std(ddof=1)) * math.sqrt(math.pi / 2 / len(logs) * _alike(clipped))
    return middle, student(level, len(logs) - 1) * error


def _alike(values: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """By how much the variance of a mean grows because a value resembles the one before: (1 + r) / (1 - r)."""
    away = np.asarray(values) - np.mean(values)
    total = float((away**2).sum())
    if len(away) < 8 or not total:
        return 1.0
    alike = min(_MOST_ALIKE, max(0.0, float((away[1:] * away[:-1]).sum()) / total))
    return (1 + alike) / (1 - alike)


def _behind(steps: int, best: float, worst: float, leader: int) -> str:
    return (
        f"stopped early: could not reach the leader, after {steps} steps at most {best:,.0f} tokens/s "
        f"against at least {worst:,.0f} of trial {leader}"
    )
