"""How far one configuration leads another one, from windows that alternate; to be looked at after every round. Pure.

A window is a short run. In a round each configuration that is still in question has one, in an order that is turned
round every time (A B C, then C B A): what the machine does meanwhile hits all of them alike, and a drift cancels. What
counts is the difference of two configurations' logarithms of rates, round by round.

Who looks after every round and stops once it is clear is wrong more often than an ordinary interval says. The interval
here is a confidence sequence: with probability ``level`` it holds the truth after *all* rounds at once, so it does not
matter when one looks, stops, or decides to go on. It holds every difference that a t-test by betting does not reject,
whose wealth is the Bayes factor of an effect size from a normal distribution against none: a martingale whatever the
standard deviation is, which exceeds 1 / error with a probability below that error (Ville 1939). Lai 1976, "On
confidence sequences"; Goenen et al. 2005, "The Bayesian two-sample t test", has the factor; Wang and Ramdas 2025,
"Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance", compares such sequences.
``benchmarks/confirmation_replay.py`` tries it on recorded windows, whose noise is not Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from profilers.analysis.statistics import Interval

Verdict = Literal["better", "worse", "equal", "undecided"]

#: An interval that reaches further than this factor to either side says nothing, and is left out.
WIDEST = 3.0
#: The variance of the betted effect size, in standard deviations of one round's difference.
EFFECT = 1.0
#: Rounds from here on are not worth forecasting.
_FORESEEN = 100_000


def interval(middle: float, half: float) -> Interval:
    """Of a ratio whose logarithm is within ``half`` of the ``middle``; without ends where these say nothing."""
    if half > math.log(WIDEST):
        return Interval(math.exp(middle), None, None)
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def verdict(ratio: Interval, margin: float) -> Verdict:
    """What the interval of a ratio says. ``margin``: ratios so close to 1 count as equal; 0 if none does."""
    if ratio.low is None or ratio.high is None:
        return "undecided"
    if margin and ratio.low >= 1 / (1 + margin) and ratio.high <= 1 + margin:
        return "equal"
    if ratio.low > 1:
        return "better"
    return "worse" if ratio.high < 1 else "undecided"


@dataclass(frozen=True, slots=True)
class Lead:
    """By how much a configuration leads another one after so many ``rounds``: a difference of logarithms of rates.

    ``deviation`` is that of one round's difference, ``half`` how far the interval reaches to each side; both are
    infinite while nothing can be told. ``error`` is one minus the level.
    """

    rounds: int
    middle: float
    deviation: float
    half: float
    error: float

    @property
    def interval(self) -> Interval:
        """Of the ratio of the rates."""
        return interval(self.middle, self.half)

    def verdict(self, margin: float) -> Verdict:
        """See :func:`verdict`."""
        return verdict(self.interval, margin)

    @property
    def probability(self) -> float | None:
        """That it is ahead, of the kind of the interval: by the effect sizes that this bets on, after any number of
        rounds; None of fewer than two.

        With a difference from N(0, ``EFFECT`` s²), and s of any size alike likely, the posterior of the difference is
        Student's t with ``rounds`` degrees of freedom (Murphy 2007, "Conjugate Bayesian analysis of the Gaussian
        distribution", section 6).
        """
        if self.rounds < 2:
            return None
        if self.middle == 0:
            return 0.5
        from scipy.special import stdtr  # takes 0.2 s to load, and most commands need none of it

        weight = self.rounds + 1 / EFFECT
        squares = (self.rounds - 1) * self.deviation**2 + self.middle**2 * self.rounds / (EFFECT * weight)
        score = self.middle * self.rounds**1.5 / math.sqrt(weight * squares)
        return float(stdtr(self.rounds, score))

    def more_rounds(self, margin: float) -> int | None:
        """How many more rounds would decide, if the difference and its noise stay as they are; None if none would."""
        if math.isinf(self.deviation):
            return None
        rounds, apart, near = self.rounds, abs(self.middle), math.log1p(margin)
        while rounds < _FORESEEN:
            half = reach(rounds, self.error) * self.deviation
            if half < apart or apart + half <= near:
                return rounds - self.rounds
            rounds += max(1, rounds // 50)
        return None


def lead(first: Mapping[int, float], second: Mapping[int, float], error: float) -> Lead:
    """From the logarithms of both configurations' rates, by round; rounds that only one of them has do not count."""
    both = [place for place in first if place in second]
    leads_by_count = leads([first[place] for place in both], [second[place] for place in both], error)
    return leads_by_count[-1] if leads_by_count else Lead(0, 0.0, math.inf, math.inf, error)


def leads(first: Sequence[float], second: Sequence[float], error: float) -> list[Lead]:
    """As :func:`lead`, after each of the rounds, which both configurations had."""
    apart = np.asarray(first, float) - np.asarray(second, float)
    counts = np.arange(1, len(apart) + 1)
    shift = apart[0] if len(apart) else 0.0  # squares of what is left are as exact as the differences
    sums, squares = (apart - shift).cumsum(), ((apart - shift) ** 2).cumsum()
    variances = np.maximum(squares - sums**2 / counts, 0.0) / np.maximum(counts - 1, 1)
    return [
        _lead(int(count), float(shift + total / count), math.sqrt(variance), error)
        for count, total, variance in zip(counts, sums, variances, strict=True)
    ]


def _lead(rounds: int, middle: float, deviation: float, error: float) -> Lead:
    reached = reach(rounds, error)
    if rounds < 2 or math.isinf(reached):
        return Lead(rounds, middle, deviation if rounds > 1 else math.inf, math.inf, error)
    return Lead(rounds, middle, deviation, reached * deviation, error)


@lru_cache(maxsize=64)
def fewest(error: float) -> int:
    """Rounds of which there is an interval."""
    return next(rounds for rounds in range(2, _FORESEEN) if not math.isinf(reach(rounds, error)))


@lru_cache(maxsize=4096)
def reach(rounds: int, error: float) -> float:
    """Standard deviations from the mean to the end of the interval after so many rounds; infinite of too few.

    With x = 1 + ``rounds`` * ``EFFECT`` and u = t * t / (rounds - 1), a difference is kept while
    ((1 + u) / (1 + u / x)) ** (rounds / 2) < sqrt(x) / error.
    """
    if rounds < 2:
        return math.inf
    larger = 1 + rounds * EFFECT
    wealth = (math.sqrt(larger) / error) ** (2 / rounds)
    if wealth >= larger:
        return math.inf
    return math.sqrt((rounds - 1) / rounds * (wealth - 1) / (1 - wealth / larger))
