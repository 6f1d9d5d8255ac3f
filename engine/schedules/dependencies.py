"""What must happen before what, and the messages that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from engine.schedules.actions import Action, Plan, Work

_DIRECTION = {Work.FORWARD: 1, Work.INPUT: -1, Work.WEIGHT: 0}


class Route(NamedTuple):
    """Messages of one kind from one rank to another: F carries activations, I gradients."""

    source: int
    target: int
    work: Work


def result(action: Action) -> Action:
    """What an action leaves behind for others, as an action; a whole backward leaves what I leaves."""
    work, micro_batch, stage = action
    return Action(Work.INPUT, micro_batch, stage) if work is Work.BACKWARD else action


def needs(action: Action, stages: int) -> list[Action]:
    """The results that must be there before an action can start; the one of another stage comes first."""
    work, micro_batch, stage = action
    if work is Work.FORWARD:
        return [Action(Work.FORWARD, micro_batch, stage - 1)] if stage else []
    if work is Work.WEIGHT:
        return [Action(Work.INPUT, micro_batch, stage)]
    own = Action(Work.FORWARD, micro_batch, stage)
    return [own] if stage == stages - 1 else [Action(Work.INPUT, micro_batch, stage + 1), own]


def in_order(plan: Plan) -> Iterator[tuple[int, Action]]:
    """(rank, action) in an order that keeps every rank's list and every need; ends early in a deadlock."""
    done, places, moved = set[Action](), [0] * len(plan.actions), True
    while moved:
        moved = False
        for rank, actions in enumerate(plan.actions):
            while places[rank] < len(actions):
                action = actions[places[rank]]
                if not done.issuperset(needs(action, plan.stages)):
                    break
                done.add(result(action))
                places[rank] += 1
                moved = True
                yield rank, action


def sent(plan: Plan) -> dict[Route, list[Action]]:
    """The results that travel on each route, in the order in which their source makes them."""
    routes: dict[Route, list[Action]] = {}
    for rank, actions in enumerate(plan.actions):
        for action in map(result, actions):
            to = action.stage + _DIRECTION[action.work]
            if 0 <= to < plan.stages and plan.rank_of[to] != rank:
                routes.setdefault(Route(rank, plan.rank_of[to], action.work), []).append(action)
    return routes


def received(plan: Plan) -> dict[Route, list[Action]]:
    """The results that travel on each route, in the order in which their target needs them."""
    routes: dict[Route, list[Action]] = {}
    for rank, actions in enumerate(plan.actions):
        for action in actions:
            for need in needs(action, plan.stages):
                if plan.rank_of[need.stage] != rank:
                    routes.setdefault(Route(plan.rank_of[need.stage], rank, need.work), []).append(need)
    return routes
