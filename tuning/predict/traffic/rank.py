"""One rank through a step: its schedule's actions, the order of its messages, and what its optimizer sends.

The order is that of ``engine.parallel.pipeline``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from engine.config.formulas.learning import OPTIMIZERS
from engine.config.formulas.tied_parameters import Holders, sharing_of
from engine.config.layout import Layout, layout_of
from engine.config.run_config import RunConfig
from engine.footprint.activations import Part
from engine.footprint.footprint import parts_of, plan_of
from engine.schedules.actions import Action, Plan, Work, result_of, results_by_route
from engine.schedules.registry import SCHEDULES
from profilers.records.operations import ALL_REDUCE, RECV, SEND
from tuning.predict.traffic.calls import (
    BYTES,
    FLOAT32,
    FLOAT64,
    Call,
    Item,
    Join,
    RankCalls,
    Section,
    Wire,
    drop_notes,
)
from tuning.predict.traffic.gradients import GradientGroup
from tuning.predict.traffic.layers import Parameter, parameters_of, splits
from tuning.predict.traffic.stage import Stage, action_items, waits


class PipelineEndpoint:
    """One rank of a pipeline: of each neighbour one receive is posted ahead, a send when there is something to send."""

    def __init__(self, plan: Plan, place: int, wire: Wire, due: Mapping[int, Sequence[Action]]) -> None:
        self._plan, self._place, self._wire = plan, place, wire
        self._due = {source: deque(order) for source, order in due.items()}
        self._under_way: dict[int, Action] = {}
        self._here = set[Action]()

    def begin_step(self) -> Iterator[Call]:
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

    def give(self, action: Action, to_stage: int) -> Iterator[Call]:
        """A result leaves for another stage."""
        if self._plan.rank_of[to_stage] == self._place:
            self._here.add(action)
        else:
            yield self._wire.message(SEND.name).with_tag("sent")

    def _expect(self, source: int) -> Iterator[Call]:
        if self._due[source] and source not in self._under_way:
            self._under_way[source] = self._due[source].popleft()
            yield self._wire.message(RECV.name).with_tag("received")


def arrivals(plan: Plan) -> dict[int, dict[int, tuple[Action, ...]]]:
    """Rank -> source -> the results that come from it, of both kinds, in the order in which it makes them."""
    numbers_by_result = [
        {result_of(action): number for number, action in enumerate(actions)} for actions in plan.actions
    ]
    arrivals: dict[int, dict[int, list[Action]]] = {}
    for route, results in results_by_route(plan).items():
        arrivals.setdefault(route.target, {}).setdefault(route.source, []).extend(results)
    return {
        target: {
            source: tuple(sorted(results, key=numbers_by_result[source].__getitem__))
            for source, results in of.items()
        }
        for target, of in arrivals.items()
    }


ARRIVING = "arriving"


@dataclass(frozen=True)
class Pipeline:
    """What is the same for all ranks: the schedule, the stages' parts of the model, and what arrives where."""

    config: RunConfig
    plan: Plan
    parts: tuple[Part, ...]
    arrivals: Mapping[int, Mapping[int, Sequence[Action]]]

    @classmethod
    def from_config(cls, config: RunConfig) -> Pipeline:
        """That of a configuration."""
        plan = plan_of(config)
        return cls(config, plan, tuple(parts_of(config, plan)), arrivals(plan))

    @cached_property
    def holders(self) -> Holders:
        """Which stages hold a shared parameter."""
        layers = [range(part.start, part.start + part.layers) for part in self.parts]
        return Holders(sharing_of(self.config.model), layers, self.plan.rank_of)


class RankStep:
    """The step of one rank, section by section."""

    def __init__(self, pipeline: Pipeline, rank: int, batches: bool) -> None:
        self._config, self._plan, self._parts = pipeline.config, pipeline.plan, pipeline.parts
        self._wire = Wire(self._config, batches)
        self._layout = self._wire.layout
        coordinates = self._layout.coordinates(rank)
        if self._config.data.tasks:  # each dp rank has as many micro-batches as it was dealt
            self._plan = plan_of(self._config, coordinates.dp)
        self._place, data_rank = coordinates.pp, self._layout.data_rank(coordinates) % self._layout.inner
        own_parts = {stage: pipeline.parts[stage] for stage in self._plan.stages_of(coordinates.pp)}
        self._own = list(own_parts.values())
        at_end = _at_end(self._config, self._own, pipeline.holders)
        self._stages = {
            stage: Stage(
                self._wire, part, data_rank, pipeline.holders, at_end if stage == max(own_parts) else ()
            )
            for stage, part in own_parts.items()
        }
        self._post = PipelineEndpoint(
            self._plan, coordinates.pp, self._wire, pipeline.arrivals.get(coordinates.pp, {})
        )
        self._known: dict[tuple[int, Work, bool], list[Item]] = {}

    def sections(self) -> Iterator[Section]:
        """In order."""
        yield Section("before", tuple(self._opening_calls()))
        yield Section("open", tuple(self._post.begin_step()))
        actions = self._plan.actions[self._place]
        completing = _completing(actions)
        for place, action in enumerate(actions):
            self._gather_once(actions[place : place + 2])
            yield Section("action", self._items(action, place in completing), action)
        closing = tuple(item for stage in self._stages.values() for item in stage.finish())
        yield Section("close", closing)
        yield Section("optimizer", tuple(self._optimizer()))

    def _items(self, action: Action, last: bool) -> tuple[Call | Join, ...]:
        items, needed, output = list[Item](), self._plan.find_input(action), self._plan.find_output(action)
        if needed is not None:
            items += self._post.take(needed)
        items += self._action_items(action, last)
        if output is not None:
            items += self._post.give(*output)
        return drop_notes(items)

    def _action_items(self, action: Action, last: bool) -> list[Item]:
        """Without sharding, all micro-batches of a stage send alike but the last one."""
        stage, key = self._stages[action.stage], (action.stage, action.work, last)
        if stage.shards:
            return list(action_items(stage, action, last))
        if key not in self._known:
            self._known[key] = list(action_items(stage, action, last))
        return self._known[key]

    def _gather_once(self, ahead: Sequence[Action]) -> None:
        """A schedule that works chunk by chunk keeps what it has gathered for the next micro-batch."""
        if SCHEDULES[self._plan.kind].chunk_by_chunk:
            same = len(ahead) == 2 and (ahead[0].stage, ahead[0].work) == (ahead[1].stage, ahead[1].work)
            self._stages[ahead[0].stage].keep_gathered(same)

    def _opening_calls(self) -> Iterator[Call]:
        """New weights, the last bucket first, and delayed gradients, which the step before has sent."""
        if self._config.overlap.gather_with_optimizer:
            for shared_group in self._shared_groups:
                for index in (
                    reversed(range(len(shared_group.buckets)))
                    if shared_group.sliced and not shared_group.at_end
                    else ()
                ):
                    yield shared_group.gathering(index).with_tag(ARRIVING)
        for stage in self._stages.values():
            yield from stage.begin_step()

    def _optimizer(self) -> Iterator[Call]:
        elements = sum(stage.partial_elements() for stage in self._stages.values())
        tp = self._layout.tp
        if tp > 1 and elements:
            yield Call(ALL_REDUCE.name, "tp", FLOAT32, tp, BYTES[FLOAT32] * elements)
        norm = norm_group(self._layout)
        if norm is not None:
            yield Call(ALL_REDUCE.name, norm[0], FLOAT64, norm[1], BYTES[FLOAT64])
            if OPTIMIZERS[
                self._config.train.optimizer
            ].whole_sums:  # the lengths of each and of its direction
                yield Call(
                    ALL_REDUCE.name,
                    norm[0],
                    FLOAT64,
                    norm[1],
                    2 * BYTES[FLOAT64] * self._count_parameters(norm[0]),
                )
        for shared_group in self._shared_groups:
            if shared_group.sliced and (
                shared_group.at_end or not self._config.overlap.gather_with_optimizer
            ):
                for index in range(len(shared_group.buckets)):
                    yield shared_group.gathering(index)

    def _count_parameters(self, axis: str) -> int:
        """Parameters of all ranks of the norm's group: of the whole model, or of this rank's stages."""
        parts = self._own if axis == "tp" else self._parts
        return len(
            {_known_as(part, parameter) for part in parts for parameter in parameters_of(self._config, part)}
        )

    @property
    def _shared_groups(self) -> list[GradientGroup]:
        return [group for stage in self._stages.values() for group in stage.shared]


def _at_end(config: RunConfig, parts: Iterable[Part], holders: Holders) -> list[Parameter]:
    """What a rank's stages share, within them or with others, and average at the end of a step; each once."""
    parameters = (parameter for part in parts for parameter in parameters_of(config, part))
    waiting = (parameter for parameter in parameters if waits(parameter, holders, splits(config)))
    # In a block's set by the name in the block; tied embeddings are a set of one.
    return list(
        {(parameter.shared, parameter.name.partition(".")[2]): parameter for parameter in waiting}.values()
    )


def _known_as(part: Part, parameter: Parameter) -> tuple[str | int, ...]:
    """What a parameter is called in the whole model."""
    return (
        (parameter.shared, parameter.name.partition(".")[2])
        if parameter.shared
        else (part.start, parameter.block, parameter.name)
    )


def norm_group(layout: Layout) -> tuple[str, int] | None:
    """Axis and size of the smallest group that holds every different gradient; None for one rank."""
    if layout.data_ranks_differ:
        return "world", layout.world_size
    if layout.tp > 1 and layout.pp > 1:
        return "model", layout.tp * layout.pp
    return next(((axis, size) for axis, size in (("tp", layout.tp), ("pp", layout.pp)) if size > 1), None)


def _completing(actions: Sequence[Action]) -> set[int]:
    """Places of each stage's last action of each kind of backward."""
    last = {
        (action.stage, action.work): place
        for place, action in enumerate(actions)
        if action.work is not Work.FORWARD
    }
    return set(last.values())


def traffic_of(pipeline: Pipeline, rank: int, backend: str = "gloo") -> RankCalls:
    """What ``rank`` sends in a step of a configuration that keeps every rule, and of which nothing is unknown.

    ``backend`` decides the order of a ring's two messages: on NCCL they are one batch.
    """
    return RankCalls(rank, tuple(RankStep(pipeline, rank, backend == "nccl").sections()))


def why_not_known(config: RunConfig) -> str | None:
    """What of a configuration has no formula; None if all has one."""
    compression, parallel = config.compression, config.parallel
    sharded = parallel.zero_stage >= 2 and layout_of(config).inner > 1
    reasons = {
        "compile=true: the compiler decides what is sent when": config.compile,
        f"outer.method={config.outer.method}: what is sent differs from step to step": (
            config.outer.method != "none"
        ),
        f"compression.method={compression.method}: messages depend on how parts are dealt": (
            compression.method != "none" and layout_of(config).inner > 1
        ),
        f"compression.weights={compression.weights}: slices carry scales of their own": (
            compression.weights != "none" and sharded
        ),
        "parallel.ep with zero_stage 2 or 3: experts gather by themselves, once more when they are recomputed": (
            parallel.ep > 1 and sharded
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
