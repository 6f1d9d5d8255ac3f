"""One stage of one rank through a step: what its forwards and backwards send, gradients included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from engine.config.formulas.tied_parameters import Holders
from engine.footprint.activations import Part
from engine.schedules.actions import Action, Work
from profilers.records.operations import ALL_REDUCE
from tuning.predict.traffic.calls import BFLOAT16, BYTES, FLOAT32, Call, GradientCompletion, Item, Join, Wire
from tuning.predict.traffic.gradients import (
    GRADIENTS,
    REDUCTIONS,
    BackwardBuckets,
    GradientGroup,
    Policy,
    Units,
    make_buckets,
)
from tuning.predict.traffic.layers import (
    ROOT,
    Layers,
    Parameter,
    backward_items,
    forward_items,
    parameters_of,
    sets_of,
    splits,
)


class Stage:
    """Calls come in the order in which this rank makes them.

    ``at_end`` are the parameters whose gradients this stage averages at the end of a step, for all stages of its rank.
    """

    def __init__(
        self, wire: Wire, part: Part, data_rank: int, holders: Holders, at_end: Sequence[Parameter] = ()
    ) -> None:
        self._wire, self._part, self._data_rank, self._holders = wire, part, data_rank, holders
        self._config, self._layout = wire.config, wire.layout
        self._layers = Layers(wire, part)
        self._first, self._last = self._layers.first(), self._layers.last()
        self._blocks = [self._layers.block(place) for place in range(part.layers)]
        self.parameters = parameters_of(self._config, part)
        self._at_end = list(at_end)
        self.shards = self._layout.zero_stage >= 2 and self._layout.shard > 1
        self.shared = list(self._shared_groups())
        self._filling = [BackwardBuckets(group) for group in self.shared]
        remaining = [parameter for parameter in self.parameters if not self._is_whole(parameter)]
        policy = Policy.from_config(self._config, wire.batches)
        self._sets = sets_of(self._config, part)
        self._units = Units(policy, remaining, len(self._sets)) if self.shards else None

    def forward(self) -> Iterator[Item]:
        """One micro-batch's; nothing of it depends on which, but under ZeRO 2 and 3."""
        yield from self._begin_unit(ROOT, forward=True)
        yield from forward_items(self._first)
        for place, block in enumerate(self._blocks):
            yield from self._begin_unit(self._unit_from(place), forward=True)
            yield from block.forward
            self._end_unit(self._unit_to(place))
        self._end_unit(ROOT)
        yield from forward_items(self._last)

    def backward(self, last: bool) -> Iterator[Item]:
        """One micro-batch's; after the ``last`` gradients of what is not ``late`` are complete.

        Without a head the last block's output is the stage's: then that block's hooks come first.
        """
        if self._last:
            yield from self._begin_unit(ROOT)
            yield from self._fill_buckets(backward_items(self._last), last)
        for place in reversed(range(self._part.layers)):
            yield from self._begin_unit(self._unit_to(place))
            if not self._last and place == self._part.layers - 1:
                yield from self._begin_unit(ROOT)
            yield from self._fill_buckets(self._blocks[place].backward, last)
            yield from self._scatter_unit(self._unit_from(place), last)
        yield from self._fill_buckets(backward_items(self._first), last)
        yield from self._scatter_unit(ROOT, last)
        if last and self._units is not None:
            self._units.forget()

    def weights(self, last: bool) -> Iterator[Item]:
        """Gradients of matrices; the ``last`` fill buckets."""
        late = [
            GradientCompletion(parameter.name) for parameter in reversed(self.parameters) if parameter.late
        ]
        return self._fill_buckets(late, last)

    def keep_gathered(self, keep: bool) -> None:
        """Sharded parameters stay from one micro-batch to the next."""
        if self._units is not None and self._layout.zero_stage == 3:
            self._units.keep = keep

    def finish(self) -> Iterator[Call | Join]:
        """What is left of the gradients, and the wait for all of them."""
        yield from self._sums_of_slices()
        for buckets in self._filling:
            yield from buckets.finish(delayed=self._config.overlap.delay > 0)
        if any(group.sends for group in self.shared):
            yield Join(GRADIENTS)
        if self._units is not None:
            yield Join(REDUCTIONS)

    def begin_step(self) -> Iterator[Call]:
        """Delayed gradients, which the step before has sent."""
        for buckets in self._filling if self._config.overlap.delay else ():
            yield from buckets.send()

    def partial_elements(self) -> int:
        """Values of this rank whose gradients are partial over tp."""
        whole = sum(group.partial_elements() for group in self.shared)
        if not self.shards:
            return whole
        rank, ranks = self._data_rank % self._layout.shard, self._layout.shard
        sliced = [
            parameter for parameter in self.parameters if parameter.partial and not self._is_whole(parameter)
        ]
        return whole + sum(parameter.slice_elements(ranks, rank) for parameter in sliced)

    def _unit_from(self, place: int) -> int | None:
        """The unit whose first block has this place."""
        first = self._part.start + place
        return next(
            (number for number, set_of_layers in enumerate(self._sets) if set_of_layers.start == first), None
        )

    def _unit_to(self, place: int) -> int | None:
        """The unit whose last block has this place."""
        last = self._part.start + place
        return next(
            (number for number, set_of_layers in enumerate(self._sets) if set_of_layers[-1] == last), None
        )

    def _sums_of_slices(self) -> Iterator[Call]:
        """Under ZeRO 2 and 3, of what other stages hold, too."""
        if self._layout.zero_stage < 2:
            return
        ranks = self._layout.shard
        for shared, members in sorted(_by_set(self.parameters).items()):
            split = [member for member in members if not self._is_whole(member)]
            stages = len(self._holders.meeting(shared))
            elements = sum(parameter.slice_elements(ranks, self._data_rank % ranks) for parameter in split)
            if stages and split:
                yield Call(ALL_REDUCE.name, "pp", FLOAT32, stages, BYTES[FLOAT32] * elements)

    def _begin_unit(self, name: int | None, forward: bool = False) -> Iterator[Item]:
        if self._units is None or name is None:
            return iter(())
        return self._units.begin_forward(name) if forward else self._units.begin_backward(name)

    def _end_unit(self, name: int | None) -> None:
        if self._units is not None and name is not None:
            self._units.end_forward(name)

    def _scatter_unit(self, name: int | None, last: bool) -> Iterator[Item]:
        return iter(()) if self._units is None or name is None else self._units.end_backward(name, last)

    def _fill_buckets(self, items: Iterable[Item], last: bool) -> Iterator[Item]:
        """Complete gradients let their buckets go."""
        armed = last and not self._config.overlap.delay
        for item in items:
            if not isinstance(item, GradientCompletion):
                yield item
                continue
            for buckets in self._filling if armed else ():
                yield from buckets.add(item.name)

    def _is_whole(self, parameter: Parameter) -> bool:
        """Whether ZeRO 2 and 3 leave every rank a copy."""
        return parameter.wide and self._config.precision == "bf16"

    def _shared_groups(self) -> Iterator[GradientGroup]:
        """All parameters, under ep the experts apart; with sharding those that are left whole."""
        layout, axis = self._layout, self._wire.data_axis
        if layout.zero_stage >= 2:
            ranks = layout.inner if self.shards else 1
            whole = [
                parameter for parameter in self.parameters if not self.shards or self._is_whole(parameter)
            ]
            at_end = [
                parameter
                for parameter in whole
                if self._is_whole(parameter) and waits(parameter, self._holders, False)
            ]
            yield from self._bucket_parameters(
                [parameter for parameter in whole if parameter not in at_end], axis, ranks, 0
            )
            yield from self._sets_of(at_end, axis, ranks, 0)
            return
        late, ep = splits(self._config), layout.ep
        during = [
            parameter
            for parameter in self.parameters
            if not (parameter.is_rank_local or waits(parameter, self._holders, late))
        ]
        yield from self._bucket_parameters(
            [parameter for parameter in self.parameters if parameter.is_rank_local], axis, 1, 0
        )
        data, experts = (
            (axis, layout.inner, self._data_rank),
            ("edp", layout.inner // ep, self._data_rank // ep),
        )
        yield from self._bucket_parameters(
            [parameter for parameter in during if not _in_expert_group(parameter, ep)], *data
        )
        yield from self._bucket_parameters(
            [parameter for parameter in during if _in_expert_group(parameter, ep)], *experts
        )
        yield from self._sets_of(
            [parameter for parameter in self._at_end if not _in_expert_group(parameter, ep)], *data
        )
        yield from self._sets_of(
            [parameter for parameter in self._at_end if _in_expert_group(parameter, ep)], *experts
        )

    def _sets_of(
        self, parameters: list[Parameter], axis: str, ranks: int, rank: int
    ) -> Iterator[GradientGroup]:
        """What is complete at the end of a step only."""
        for shared, members in sorted(_by_set(parameters).items()):
            stages = len(self._holders.meeting(shared)) or 1
            for parameter in self._bucket_parameters(members, axis, ranks, rank):
                yield replace(parameter, at_end=True, stages=stages)

    def _bucket_parameters(
        self, parameters: list[Parameter], axis: str, ranks: int, rank: int
    ) -> Iterator[GradientGroup]:
        sliced = self._layout.zero_stage == 1 and ranks > 1
        narrow = self._config.memory.parameters == "bf16" and self._layout.zero_stage < 2
        if parameters:
            buckets = make_buckets(parameters, self._config.overlap.bucket_mb, ranks if sliced else 1)
            yield GradientGroup(axis, ranks, rank, sliced, tuple(buckets), BFLOAT16 if narrow else FLOAT32)


def waits(parameter: Parameter, holders: Holders, late: bool) -> bool:
    """Whether the gradient of a parameter is complete only at the end of a step."""
    return bool(parameter.shared) and (late or len(holders.stages(parameter.shared)) > 1)


def _in_expert_group(parameter: Parameter, ep: int) -> bool:
    return parameter.expert and ep > 1


def _by_set(parameters: Iterable[Parameter]) -> dict[str, list[Parameter]]:
    sets: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        if parameter.shared:
            sets.setdefault(parameter.shared, []).append(parameter)
    return sets


def action_items(stage: Stage, action: Action, last: bool) -> Iterator[Item]:
    """What an action sends, but for its messages to other stages."""
    if action.work is Work.FORWARD:
        return stage.forward()
    return stage.weights(last) if action.work is Work.WEIGHT else stage.backward(last)
