"""What windows of a live study are worth: whether one can still reach the leader, whether another one is likely to
bring more than it costs, and whether leaders measured again pay, beside what a wrong choice may cost the rest of the
run. Pure.

A machine becomes slower and faster meanwhile. What the leader's step takes right before a window, over what it took
when it was measured, is the window's level; windows are compared as if all had been measured at the level of 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, stdev, variance

from tuning.analysis.comparison import LEVEL
from tuning.analysis.paired_comparison import fewest

#: Fewer measured steps say too little.
LEAST_STEPS = 3
#: How far windows of one configuration stray beyond their steps: a standard deviation, in logs.
SPREAD = 0.03
#: By so much the fastest of so many steps of a window has to be slower than the leader's mean one to be given up.
HOPELESS = {2: 1.25, LEAST_STEPS: 1.1}
#: So many configurations say how others may do.
KNOWN = 4
#: From so many standard errors on a leader's steps are said to take another time than before.
MOVED = 2.0
#: What a round may cost anyway, of the seconds that the rest of the run takes: to know that a gain is real.
TO_KNOW = 0.01
_NORMAL = NormalDist()


@dataclass
class Arm:
    """Seconds of the measured steps of one configuration, over its ``windows``."""

    steps: list[float] = field(default_factory=list)
    windows: int = 0
    #: Those of them that measured it again.
    rounds: int = 0

    @property
    def seconds(self) -> float:
        """Of its mean step."""
        return fmean(self.steps)

    @property
    def error(self) -> float:
        """Of the logarithm of its mean step: of its steps, and of windows as such."""
        logs = [math.log(step) for step in self.steps]
        of_steps = variance(logs) / len(logs) if len(logs) > 1 else 0.0
        return math.sqrt(of_steps + SPREAD**2 / self.windows)


class WindowValues:
    """Every configuration that windows measured, by a name; the ``baseline`` is the one measured first."""

    def __init__(self) -> None:
        self._arms: dict[str, Arm] = {}
        self._prices: list[float] = []

    def note(self, name: str, seconds: Sequence[float], level: float = 1.0, is_repeat: bool = False) -> None:
        """A window measured these steps, perhaps not for the first time."""
        if seconds:
            arm = self._arms.setdefault(name, Arm())
            arm.steps += [step_seconds / level for step_seconds in seconds]
            arm.windows += 1
            arm.rounds += is_repeat

    def forget(self, name: str) -> None:
        """What was measured of this one says nothing of what can be reached."""
        self._arms.pop(name, None)

    def note_cost(self, seconds: float, steps: int, level: float = 1.0) -> None:
        """A window of the search took the run so long, which came so many ``steps`` further meanwhile: fewer than none
        where it went back.
        """
        if self._arms:
            self._prices.append(max(0.0, seconds - steps * level * self._leader.seconds))

    @property
    def _leader(self) -> Arm:
        return min(self._arms.values(), key=lambda arm: arm.seconds)

    def level(self, name: str, seconds: Sequence[float]) -> float | None:
        """What the steps of the leader with this name take now over what they took, 1 where they differ by no more
        than two standard errors of windows; None if it was not measured before.
        """
        arm, moved = self._arms.get(name), self.time_ratio(name, seconds)
        if arm is None or moved is None:
            return None
        error = math.hypot(Arm(list(seconds), 1).error, arm.error)
        return moved if abs(math.log(moved)) > MOVED * error else 1.0

    def time_ratio(self, name: str, seconds: Sequence[float]) -> float | None:
        """The same, whether the difference is told from chance or not."""
        arm = self._arms.get(name)
        return None if arm is None or not seconds else fmean(seconds) / arm.seconds

    def explain_pruning(self, seconds: Sequence[float], tokens: int, level: float = 1.0) -> str:
        """Why a window with these steps of ``tokens`` cannot come to lead; empty while it may."""
        bound = HOPELESS.get(min(len(seconds), LEAST_STEPS))
        if bound is None or not self._arms:
            return ""
        leader = level * self._leader.seconds
        if min(seconds) <= bound * leader:
            return ""
        whose = "the leader, as the machine is now"
        if level == 1:
            whose = "the leader's mean, on the machine as it was at first"
        return (
            f"could not reach the leader, after {len(seconds)} steps at most {tokens / min(seconds):,.0f} tokens/s in "
            f"one of them against {tokens / leader:,.0f} of {whose}"
        )

    def why_enough(self, steps_left: int) -> str:
        """Why no other window of the search is worth it, with so many steps ``steps_left``; empty while one may pay.

        Who draws from boxes that look alike goes on while the expected gain of one more is above its price (Weitzman
        1979, "Optimal search for the best alternative"). Others are taken to be as those so far, with normal
        logarithms of their steps' seconds; the price is what windows of the search have cost so far, all included.
        """
        if len(self._arms) < KNOWN or not self._prices:
            return ""
        leader, logs = self._leader.seconds, [math.log(arm.seconds) for arm in self._arms.values()]
        gain = _expected_improvement(fmean(logs) - math.log(leader), stdev(logs)) * steps_left * leader
        price = fmean(self._prices)
        if price <= gain:
            return ""
        return (
            f"another window would cost {price:.1f} s, and is expected to save {gain:.1f} s of the "
            f"{steps_left:,} steps that are left"
        )

    def not_worth_it(self, steps: int, steps_left: int, spared: bool = False) -> str:
        """Why rounds of measuring the leaders again, ``steps`` of each, cost more than they could bring to the
        ``steps_left`` of the run; empty while they may pay.

        What knowing more may bring is the expected loss of the choice as it stands, of staying with the leader though
        another one is faster, with normal errors (the expected opportunity cost of Chick and Inoue 2001,
        doi:10.1287/opre.49.5.732.10615). A round has the baseline, unless that is ``spared``, the leader and the next.
        Fewer rounds than the test needs for any verdict tell nothing, so all of them are the price; with the baseline
        it may be ``TO_KNOW`` of the rest of the run in any case: what the gain is wants to be known.
        """
        ranked = sorted(self._arms.values(), key=lambda arm: arm.seconds)
        if len(ranked) < 2:
            return ""
        leader, baseline = ranked[0], next(iter(self._arms.values()))
        if spared:
            ranked = [arm for arm in ranked if arm is not baseline]
            if leader is baseline or baseline.rounds or len(ranked) < 2:
                return "nothing would be known that is not"
        arms = [leader, ranked[1]] if spared else [leader, *_distinct(ranked[1], baseline)]
        rounds = max(1, fewest((1 - LEVEL) / (len(arms) - 1)) - min(arm.rounds for arm in arms))
        price = rounds * steps * sum(arm.seconds - leader.seconds for arm in arms)
        gain = max(_regret(leader, arm) for arm in ranked[1:]) * steps_left * leader.seconds
        if price <= max(gain, 0.0 if spared else TO_KNOW * steps_left * leader.seconds):
            return ""
        counted = "1 round" if rounds == 1 else f"{rounds:,} rounds"
        return (
            f"to measure the leaders again would cost {price:.1f} s in {counted}, with fewer nothing is decided, "
            f"and a better choice could save {gain:.1f} s of the {steps_left:,} steps that are left"
        )


def _distinct(first: Arm, second: Arm) -> list[Arm]:
    return [first] if first is second else [first, second]


def _regret(leader: Arm, other: Arm) -> float:
    """By what share the other is expected to be faster, where it is."""
    return _expected_improvement(
        math.log(other.seconds / leader.seconds), math.hypot(leader.error, other.error)
    )


def _expected_improvement(mean: float, error: float) -> float:
    """What is below zero of a normal variable, on average."""
    if not error:
        return max(0.0, -mean)
    z = mean / error
    return error * (_NORMAL.pdf(z) - z * (1 - _NORMAL.cdf(z)))


def name_of(values: Mapping[str, object]) -> str:
    """One name for some values."""
    return ", ".join(f"{key}={values[key]}" for key in sorted(values))
