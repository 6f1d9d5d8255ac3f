"""What groups of ranks took beside what they were measured to take at the start: a factor for each size, by least
squares of logarithms over the steps so far, of which later ones count more. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

#: What a step keeps of what all before it weighed. What was measured at the start weighs as one group before the first.
_KEPT = 0.8
#: One group says so much at most, one way or the other: a rank may have been stopped for seconds.
_MOST = math.log(4.0)
#: A size that no group had for so many steps counts as this part of its seconds in one plan: it is tried where that
#: would pay, for what it takes can be found out in no other way.
_UNSEEN_STEPS, _UNSEEN_PART = 50, 0.5

#: A rank's micro-batches, each the number of its group, its degree, documents, tokens, planned and measured seconds.
Told = Sequence[Sequence[float]]


def groups_of(ranks: Iterable[Told]) -> list[tuple[int, float, float]]:
    """Degree, planned and measured seconds of each group of a step that had documents. Measured are those of the rank
    that came last, which waited for no other.
    """
    work_of_groups = dict[tuple[int, float], tuple[int, float, float]]()
    for rows in ranks:
        for place, (number, degree, documents, _, planned, seconds) in enumerate(rows):
            if documents:
                least = min(seconds, work_of_groups.get((place, number), (0, 0.0, math.inf))[2])
                work_of_groups[place, number] = int(degree), planned, least
    return list(work_of_groups.values())


class GroupFactors:
    """By degree, how many times its predicted seconds a group takes."""

    def __init__(self, degrees: Iterable[int]) -> None:
        self._weights = dict.fromkeys(degrees, (1.0, 0.0))  # of groups, and of logarithms of their ratios
        self._unseen = dict.fromkeys(self._weights, 0)

    def learn(self, ranks: Iterable[Told], used: Mapping[int, float]) -> None:
        """From what all ranks tell of a step that was planned with the ``used`` factors."""
        ratios_of_degree = dict[int, list[float]]()
        for degree, planned, seconds in groups_of(ranks):
            if planned > 0 and seconds > 0 and degree in self._weights:
                ratio = math.log(seconds * used.get(degree, 1.0) / planned)
                ratios_of_degree.setdefault(degree, []).append(max(-_MOST, min(_MOST, ratio)))
        for degree, (count, total) in self._weights.items():
            ratios = ratios_of_degree.get(degree, [])
            self._unseen[degree] = 0 if ratios else self._unseen[degree] + 1
            if ratios:
                self._weights[degree] = _KEPT * count + len(ratios), _KEPT * total + sum(ratios)

    def next(self) -> dict[int, float]:
        """For the next plan."""
        factors = {degree: math.exp(total / count) for degree, (count, total) in self._weights.items()}
        unseen = max(self._unseen, key=lambda degree: (self._unseen[degree], degree))
        if self._unseen[unseen] >= _UNSEEN_STEPS:
            self._unseen[unseen] = 0
            factors[unseen] *= _UNSEEN_PART
        return factors
