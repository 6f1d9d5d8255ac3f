"""The order in which a rank posts its messages to other stages; see ``engine.parallel.pipeline_messages``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from engine.parallel.schedules.actions import Action, Plan, Work
from engine.parallel.schedules.dependencies import result as result_of
from engine.parallel.schedules.dependencies import sent
from tuning.predict.messages.calls import Call
from tuning.predict.messages.wire import Wire


class Post:
    """One rank of a pipeline: of each neighbour one receive is posted ahead, a send when there is something to send."""

    def __init__(self, plan: Plan, place: int, wire: Wire, due: Mapping[int, Sequence[Action]]) -> None:
        self._plan, self._place, self._wire = plan, place, wire
        self._due = {source: deque(order) for source, order in due.items()}
        self._under_way: dict[int, Action] = {}
        self._here = set[Action]()

    def open(self) -> Iterator[Call]:
        """A step begins."""
        for source in self._due:
            yield from self._expect(source)

    def take(self, wanted: Action) -> Iterator[Call]:
        """A result of another stage is waited for."""
        source = self._plan.rank_of[wanted.stage]
        while wanted not in self._here:
            self._here.add(self._under_way.pop(source))
            yield from self._expect(source)
        self._here.remove(wanted)

    def give(self, made: Action, to_stage: int) -> Iterator[Call]:
        """A result leaves for another stage."""
        if self._plan.rank_of[to_stage] == self._place:
            self._here.add(made)
        else:
            yield self._wire.message("send").beside("sent")

    def _expect(self, source: int) -> Iterator[Call]:
        if self._due[source] and source not in self._under_way:
            self._under_way[source] = self._due[source].popleft()
            yield self._wire.message("recv").beside("received")


def wanted(action: Action, stages: int) -> Action | None:
    """The result of another stage that an action needs."""
    if action.work is Work.FORWARD and action.stage:
        return Action(Work.FORWARD, action.micro_batch, action.stage - 1)
    if action.work in (Work.BACKWARD, Work.INPUT) and action.stage < stages - 1:
        return Action(Work.INPUT, action.micro_batch, action.stage + 1)
    return None


def given(action: Action, stages: int) -> tuple[Action, int] | None:
    """The result that an action makes for another stage, and which stage that is."""
    if action.work is Work.FORWARD:
        return (action, action.stage + 1) if action.stage < stages - 1 else None
    if action.work is Work.WEIGHT or not action.stage:
        return None
    return result_of(action), action.stage - 1


def arrivals(plan: Plan) -> dict[int, dict[int, tuple[Action, ...]]]:
    """Rank -> source -> the results that come from it, of both kinds, in the order in which it makes them."""
    made = [{result_of(one): number for number, one in enumerate(actions)} for actions in plan.actions]
    found: dict[int, dict[int, list[Action]]] = {}
    for route, results in sent(plan).items():
        found.setdefault(route.target, {}).setdefault(route.source, []).extend(results)
    return {
        target: {
            source: tuple(sorted(results, key=made[source].__getitem__)) for source, results in of.items()
        }
        for target, of in found.items()
    }
