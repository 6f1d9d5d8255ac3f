"""Which steps are recorded in detail, so that recording never costs more than a budget.

Every step has its times. Phases, collectives, actions and memory cost microseconds each; a step with very many small
calls would pay more for them than they are worth. So after a while in which every step is recorded in detail, one step
in ``every`` is: a power of two, the least at which the estimated cost is within the budget.

Which one of so many is drawn at random, so that what happens at every n-th step is neither always missed nor always
seen, and by the step's number alone, so that all ranks draw alike. The steps of a power of two are among those of every
smaller one: ranks that chose differently still have steps in common.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

#: Steps at the start, and after a change of the configuration, that are all recorded in detail.
WHOLE_STEPS = 32
#: What a mark on the way costs, with its record and on cold caches (benchmarks/profiling_cost.py).
MARK_SECONDS = 10e-6
MOST_EVERY = 64
#: Tells a ``Decision`` and the step at which it was made.
SAMPLING_EVENT = "detail"
_MIX, _BITS = 0x9E3779B97F4A7C15, 64


class Decision(NamedTuple):
    """One step in ``every``; what detail would cost if every step had it, and the budget, over the step."""

    every: int
    cost: float
    budget: float


class DetailChoice:
    """Chooses for one rank. ``budget`` is the most that detail may cost of a step; None for all steps in detail."""

    def __init__(self, budget: float | None, first: int = 0) -> None:
        self._budget = budget
        self.start_anew(first)

    def start_anew(self, step: int) -> None:
        """From ``step`` on steps are others; so many of them are recorded in detail before it is chosen again."""
        self.every, self._decided = 1, False
        self._until, self._costs = step + WHOLE_STEPS, list[float]()

    def wants(self, step: int) -> bool:
        """Whether to record it in detail."""
        return self.every == 1 or is_drawn(step, self.every)

    def add_measurement(self, step: int, seconds: float, spent: float) -> Decision | None:
        """A step in detail took ``seconds`` of a core, recording it ``spent``; what is chosen, once it is."""
        if self._decided or self._budget is None:
            return None
        self._costs.append(spent / seconds if seconds else 0.0)
        if step < self._until - 1:
            return None
        cost, self._decided = statistics.median(self._costs), True
        self.every = _least(cost / self._budget)
        return Decision(self.every, cost, self._budget)


def is_drawn(step: int, every: int) -> bool:
    """Whether ``step`` is the one among its ``every`` (a power of two) that is drawn."""
    level = 0
    while 1 << level < every:
        level += 1
        if (step >> level - 1 ^ _coin(level, step >> level)) & 1:
            return False
    return True


def _least(times: float) -> int:
    """The least power of two that is no less, up to a limit."""
    every = 1
    while every < times and every < MOST_EVERY:
        every *= 2
    return every


def _coin(level: int, block: int) -> int:
    """A number whose last bit is as good as random."""
    mixed = (block * 2 * MOST_EVERY + level + 1) * _MIX % (1 << _BITS)
    mixed = (mixed ^ mixed >> 29) * _MIX % (1 << _BITS)
    return mixed >> 40
