"""Is a plan right? Everything once, by the right rank, equal work, and an end without a deadlock. And its visits."""

from __future__ import annotations

from collections import Counter
from itertools import chain, groupby, product
from typing import NamedTuple

from engine.schedules.actions import Action, Plan, Route, Work, order_actions, result_of, results_by_route

_COMPLETE = (sorted((Work.FORWARD, Work.BACKWARD)), sorted((Work.FORWARD, Work.INPUT, Work.WEIGHT)))


def problems(plan: Plan) -> list[str]:
    """Everything that is wrong with a plan, one line each; empty if it can run.

    A rank executes its list in order. Its sends wait for nobody, it waits for what an action needs, and the
    messages of one kind between two ranks arrive in the order in which they were sent.
    """
    return _sizes(plan) or _owners(plan) + _completeness(plan) or _stuck(plan) + _crossed(plan)


def _sizes(plan: Plan) -> list[str]:
    found = [
        f"{name} is {value:,}, not at least 1"
        for name, value in (
            ("ranks", plan.ranks),
            ("stages", plan.stages),
            ("micro_batches", plan.micro_batches),
        )
        if value < 1
    ]
    if len(plan.actions) != plan.ranks:
        found.append(f"{len(plan.actions):,} lists for {plan.ranks:,} ranks")
    if len(plan.rank_of) != plan.stages:
        found.append(f"{len(plan.rank_of):,} owners for {plan.stages:,} stages")
    return found or _shares(plan)


def _shares(plan: Plan) -> list[str]:
    owned = Counter(plan.rank_of)
    strangers = [
        f"stage {stage} belongs to rank {rank}, which is not there"
        for stage, rank in enumerate(plan.rank_of)
        if not 0 <= rank < plan.ranks
    ]
    return strangers or [
        f"unequal work: rank {rank} has {owned[rank]:,} of {plan.stages:,} stages on {plan.ranks:,} ranks"
        for rank in range(plan.ranks)
        if owned[rank] * plan.ranks != plan.stages
    ]


def _owners(plan: Plan) -> list[str]:
    found = []
    for rank, actions in enumerate(plan.actions):
        for action in actions:
            if not 0 <= action.stage < plan.stages or not 0 <= action.micro_batch < plan.micro_batches:
                found.append(f"rank {rank} runs {action}, which is not part of the step")
            elif plan.paths and action.stage not in plan.paths[action.micro_batch]:
                found.append(f"rank {rank} runs {action}, which is not on its path")
            elif plan.rank_of[action.stage] != rank:
                found.append(f"rank {rank} runs {action}, which belongs to rank {plan.rank_of[action.stage]}")
    return found


def _completeness(plan: Plan) -> list[str]:
    works: dict[tuple[int, int], list[Work]] = {}
    for action in chain.from_iterable(plan.actions):
        works.setdefault((action.stage, action.micro_batch), []).append(action.work)
    found = []
    for place in product(range(plan.stages), range(plan.micro_batches)):
        if plan.paths and place[0] not in plan.paths[place[1]]:
            continue
        done = sorted(works.get(place, ()))
        if done not in _COMPLETE:
            where = f"micro-batch {place[1]} on stage {place[0]}"
            found.append(
                f"{where} runs {' '.join(done) or 'nothing'}, not F and either B or I and W, once each"
            )
    return found


def _stuck(plan: Plan) -> list[str]:
    ran = list(order_actions(plan))
    done, places = {result_of(action) for _, action in ran}, Counter(rank for rank, _ in ran)
    found = []
    for rank, actions in enumerate(plan.actions):
        if places[rank] < len(actions):
            action = actions[places[rank]]
            missing = [need for need in plan.needs(action) if need not in done]
            owners = " and ".join(f"{need} of rank {plan.rank_of[need.stage]}" for need in missing)
            found.append(f"deadlock: rank {rank} waits for ever at {action} for {owners}")
    return found


def _crossed(plan: Plan) -> list[str]:
    expected, found = received(plan), []
    for route, results in results_by_route(plan).items():
        pairs = zip(results, expected[route], strict=True)
        there, here = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))
        if there:
            found.append(
                f"rank {route.source} sends {there} when rank {route.target} expects {here}: "
                "messages of one kind keep their order"
            )
    return found


def received(plan: Plan) -> dict[Route, list[Action]]:
    """The results that travel on each route, in the order in which their target needs them."""
    routes: dict[Route, list[Action]] = {}
    for rank, actions in enumerate(plan.actions):
        for action in actions:
            for need in plan.needs(action):
                if plan.rank_of[need.stage] != rank:
                    routes.setdefault(Route(plan.rank_of[need.stage], rank, need.work), []).append(need)
    return routes


class Visits(NamedTuple):
    """How often a rank comes to one of its stages in a step."""

    forwards: int
    backwards: int


def visits(plan: Plan) -> tuple[Visits, ...]:
    """For each stage, the runs of neighbouring forwards and of neighbouring backwards in its rank's list.

    Parameters that are gathered for a visit and freed after it are gathered once for each.
    """
    counts = [[0, 0] for _ in range(plan.stages)]
    for actions in plan.actions:
        for (stage, is_forward), _ in groupby(actions, lambda a: (a.stage, a.work is Work.FORWARD)):
            counts[stage][not is_forward] += 1
    return tuple(Visits(*count) for count in counts)
