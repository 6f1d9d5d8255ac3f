"""When each action of a plan starts and ends, and what it keeps in memory.

All of it is exact. Ranks work through their lists in order. A message takes ``hop`` seconds, whatever else is
under way, and its sender goes on at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.schedules.actions import Action, Costs, Plan, Work, order_actions, result_of
from engine.schedules.credits import credits_of


class Span(NamedTuple):
    """An action with its seconds since the start of the step."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The spans of every rank, in the order of its list."""

    spans: tuple[tuple[Span, ...], ...]

    @property
    def seconds(self) -> float:
        """From the start of the step to the end of the last action."""
        return max(spans[-1].end for spans in self.spans)

    def busy_seconds(self, rank: int) -> float:
        """Time that a rank spends in actions."""
        return sum(span.end - span.start for span in self.spans[rank])

    @property
    def bubble_fraction(self) -> float:
        """Share of the step, averaged over the ranks, in which a rank does nothing."""
        busy = sum(self.busy_seconds(rank) for rank in range(len(self.spans)))
        return 1.0 - busy / (len(self.spans) * self.seconds)


def simulate(plan: Plan, costs: Costs, sizes: Sequence[float] = (), registers: int | None = None) -> Timeline:
    """Start and end of each action; stages take their ``sizes`` times the costs, all alike where none are given. With
    ``registers`` work on a message begins once there is one for it: a credit takes as long as a message.

    Raises:
        ValueError: the plan ends in a deadlock.
    """
    spans: list[list[Span]] = [[] for _ in plan.actions]
    ended: dict[Action, float] = {}
    seconds = {work: costs.seconds(work) for work in Work}
    credit = credits_of(plan, registers)
    for rank, action in order_actions(plan, credit):
        start = spans[rank][-1].end if spans[rank] else 0.0
        if action in credit:
            start = max(start, ended[result_of(credit[action])] + costs.hop)
        for need in plan.needs(action):
            way = 0.0 if plan.rank_of[need.stage] == rank else costs.hop
            start = max(start, ended[need] + way)
        end = ended[result_of(action)] = start + seconds[action.work] * (
            sizes[action.stage] if sizes else 1.0
        )
        spans[rank].append(Span(action, start, end))
    if sum(map(len, spans)) < sum(map(len, plan.actions)):
        raise ValueError(f"the {plan.kind} plan ends in a deadlock after {sum(map(len, spans)):,} actions")
    return Timeline(tuple(map(tuple, spans)))


def peak_in_flight(plan: Plan, weight_share: float = 1.0) -> tuple[float, ...]:
    """Peak number of activations on each rank, in chunks x micro-batches, counted from the lists.

    One is kept from a forward to the end of its backward. Of a split backward, ``weight_share`` of it is kept
    between the two parts (the inputs of matrices; M_W / M_B in arXiv 2401.10241).
    """
    return tuple(_peak(actions, weight_share) for actions in plan.actions)


def _peak(actions: tuple[Action, ...], weight_share: float) -> float:
    change = {
        Work.FORWARD: 1.0,
        Work.BACKWARD: -1.0,
        Work.INPUT: weight_share - 1.0,
        Work.WEIGHT: -weight_share,
    }
    level = peak = 0.0
    for action in actions:
        level += change[action.work]
        peak = max(peak, level)
    return peak
