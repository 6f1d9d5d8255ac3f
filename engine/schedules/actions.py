"""What a rank does, one action after the other; a schedule is one list of these for each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple


class Work(StrEnum):
    """Kinds of work on one micro-batch; a backward is done whole (B) or as two parts (I, then W)."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"


class Action(NamedTuple):
    """One piece of work of one stage; receives come before it and sends after it by themselves."""

    work: Work
    micro_batch: int
    stage: int = 0

    def __str__(self) -> str:
        """As written in figures: ``F0`` for stage 0, ``F0.s3`` for stage 3."""
        return f"{self.work}{self.micro_batch}" + (f".s{self.stage}" if self.stage else "")


class Size(NamedTuple):
    """What a schedule is made for: ranks in the pipeline, chunks (stages per rank), micro-batches per step."""

    ranks: int
    chunks: int
    micro_batches: int

    @property
    def stages(self) -> int:
        """Stages in the whole pipeline."""
        return self.ranks * self.chunks


Schedule = Callable[[int, Size], list[Action]]


@dataclass(frozen=True)
class Plan:
    """A whole schedule: who owns each stage, and the list that each rank executes in order.

    ``paths`` has the stages that each micro-batch goes through, in order; where it is empty they go through all.
    """

    kind: str
    ranks: int
    stages: int
    micro_batches: int
    rank_of: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]
    paths: tuple[tuple[int, ...], ...] = ()

    @property
    def chunks(self) -> int:
        """Stages per rank."""
        return self.stages // self.ranks

    @property
    def splits_backward(self) -> bool:
        """Whether weight gradients are taken apart from those of inputs."""
        return any(action.work is Work.INPUT for actions in self.actions for action in actions)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that a rank owns, in the order of the model's layers."""
        return tuple(stage for stage, owner in enumerate(self.rank_of) if owner == rank)

    @property
    def trained_shares(self) -> tuple[float, ...]:
        """The share of the micro-batches that goes through each stage."""
        paths = self.paths or (range(self.stages),)
        return tuple(sum(stage in path for path in paths) / len(paths) for stage in range(self.stages))

    def previous_stage(self, micro_batch: int, stage: int) -> int | None:
        """The stage that a micro-batch comes from; None at the first."""
        if not self.paths:
            return stage - 1 if stage else None
        place = self.paths[micro_batch].index(stage)
        return self.paths[micro_batch][place - 1] if place else None

    def next_stage(self, micro_batch: int, stage: int) -> int | None:
        """The stage that a micro-batch goes on to; None at the last."""
        if not self.paths:
            return stage + 1 if stage < self.stages - 1 else None
        path = self.paths[micro_batch]
        place = path.index(stage) + 1
        return path[place] if place < len(path) else None

    def find_input(self, action: Action) -> Action | None:
        """The result of another stage that an action needs."""
        work, micro_batch, stage = action
        if work is Work.WEIGHT:
            return None
        ahead = work is Work.FORWARD
        source = self.previous_stage(micro_batch, stage) if ahead else self.next_stage(micro_batch, stage)
        return None if source is None else Action(Work.FORWARD if ahead else Work.INPUT, micro_batch, source)

    def find_output(self, action: Action) -> tuple[Action, int] | None:
        """The result that an action makes for another stage, and which stage that is."""
        result = result_of(action)
        work, micro_batch, stage = result
        if work is Work.WEIGHT:
            return None
        target = (
            self.next_stage(micro_batch, stage)
            if work is Work.FORWARD
            else self.previous_stage(micro_batch, stage)
        )
        return None if target is None else (result, target)

    def needs(self, action: Action) -> list[Action]:
        """The results that must be there before an action can start; the one of another stage comes first."""
        work, micro_batch, stage = action
        if work is Work.WEIGHT:
            return [Action(Work.INPUT, micro_batch, stage)]
        forward = [] if work is Work.FORWARD else [Action(Work.FORWARD, micro_batch, stage)]
        wanted = self.find_input(action)
        return forward if wanted is None else [wanted, *forward]

    def turns_at_once(self, stage: int) -> bool:
        """Whether each forward of a stage is followed by its own backward, with nothing between the two."""
        actions = self.actions[self.rank_of[stage]]
        return all(
            (after.micro_batch, after.stage) == (before.micro_batch, stage)
            for before, after in pairwise(actions)
            if before.work is Work.FORWARD and before.stage == stage
        )

    def rank_text(self, rank: int) -> str:
        """A rank's list on one line; without stages where a rank has only one."""
        actions = self.actions[rank]
        if self.chunks == 1:
            actions = tuple(action._replace(stage=0) for action in actions)
        return " ".join(map(str, actions))


@dataclass(frozen=True)
class Costs:
    """Seconds of one action on one stage, and of a message's way to another rank."""

    forward: float = 1.0
    backward: float = 2.0
    input: float = 1.0
    weight: float = 1.0
    hop: float = 0.0

    def seconds(self, work: Work) -> float:
        """Seconds of one kind of work."""
        return float(getattr(self, work.name.lower()))


def forward(micro_batch: int, stage: int) -> Action:
    """A forward action."""
    return Action(Work.FORWARD, micro_batch, stage)


def backward(micro_batch: int, stage: int) -> Action:
    """A whole backward action."""
    return Action(Work.BACKWARD, micro_batch, stage)


def gradient_of_input(micro_batch: int, stage: int) -> Action:
    """The part of a backward that the stage before waits for."""
    return Action(Work.INPUT, micro_batch, stage)


def gradient_of_weights(micro_batch: int, stage: int) -> Action:
    """The part of a backward that nobody waits for."""
    return Action(Work.WEIGHT, micro_batch, stage)


class Route(NamedTuple):
    """Messages of one kind from one rank to another: F carries activations, I gradients."""

    source: int
    target: int
    work: Work


_NOBODY: Mapping[Action, Action] = MappingProxyType({})


def result_of(action: Action) -> Action:
    """What an action leaves behind for others, as an action; a whole backward leaves what I leaves."""
    work, micro_batch, stage = action
    return Action(Work.INPUT, micro_batch, stage) if work is Work.BACKWARD else action


def order_actions(plan: Plan, credit: Mapping[Action, Action] = _NOBODY) -> Iterator[tuple[int, Action]]:
    """(rank, action) in an order that keeps every rank's list and every need, an action's ``credit`` among them (see
    ``credits.py``); ends early in a deadlock.
    """
    results, places, moved = set[Action](), [0] * len(plan.actions), True
    while moved:
        moved = False
        for rank, actions in enumerate(plan.actions):
            while places[rank] < len(actions):
                action = actions[places[rank]]
                waits = action in credit and result_of(credit[action]) not in results
                if waits or not results.issuperset(plan.needs(action)):
                    break
                results.add(result_of(action))
                places[rank] += 1
                moved = True
                yield rank, action


def results_by_route(plan: Plan) -> dict[Route, list[Action]]:
    """The results that travel on each route, in the order in which their source makes them."""
    routes: dict[Route, list[Action]] = {}
    for rank, actions in enumerate(plan.actions):
        for output in map(plan.find_output, actions):
            if output is not None and plan.rank_of[output[1]] != rank:
                result, target = output
                routes.setdefault(Route(rank, plan.rank_of[target], result.work), []).append(result)
    return routes
