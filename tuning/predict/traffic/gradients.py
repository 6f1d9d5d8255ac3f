"""Gradients in buckets, and what ZeRO 2 and 3 gather and scatter, by formula.

Buckets are as ``engine.parallel.data.buckets`` deals and sends them; ZeRO 2 and 3 are torch's FSDP2 as the engine
drives it, hook by hook. A stage's blocks are units, and so is what lies outside of them, if anything does. A unit
gathers before its forward and before its backward unless it is gathered already. Before a backward it also gathers
the unit whose forward came before its own last one, whichever that was; ``overlap.prefetch`` names the units itself.
See torch.distributed.fsdp's ``_fsdp_param_group.py`` (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from engine.config.layout import Layout, layout_of
from engine.config.run_config import RunConfig
from profilers.records.operations import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from tuning.predict.traffic.calls import BFLOAT16, BYTES, FLOAT32, Call, Item, Join
from tuning.predict.traffic.layers import ROOT, Parameter

GRADIENTS = "gradients"
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Bucket:
    """Consecutive parameters, the last one first; ``length`` values with padding."""

    members: tuple[Parameter, ...]
    length: int

    @property
    def trained(self) -> int:
        """Values of what a step trains of them, which alone are averaged."""
        if all(member.trained_share == 1 for member in self.members):
            return self.length
        return sum(round(member.trained_share * member.elements) for member in self.members)


def make_buckets(parameters: Sequence[Parameter], bucket_mb: float, padding: int = 1) -> list[Bucket]:
    """Buckets of at most so many MiB of fp32 gradients, or of one parameter, in the order that a backward fills."""
    buckets = list[list[Parameter]]()
    for parameter in reversed(parameters):
        elements = sum(other.elements for other in buckets[-1]) + parameter.elements if buckets else 0
        if not buckets or BYTES[FLOAT32] * elements > bucket_mb * MIB:
            buckets.append([])
        buckets[-1].append(parameter)
    return [Bucket(tuple(members), _padded_elements(members, padding)) for members in buckets]


def _padded_elements(members: Sequence[Parameter], padding: int) -> int:
    return -(-sum(member.elements for member in members) // padding) * padding


@dataclass(frozen=True)
class GradientGroup:
    """Parameters of a stage whose gradients are averaged over one group of ranks.

    ``sliced`` is ZeRO 1: a rank updates its slice of each bucket. ``rank`` is its place in the group, ``narrow`` the
    dtype of the parameters. Those ``at_end`` are complete with the step's last backward; before that they are summed
    over so many ranks of a pipeline as there are ``stages``.
    """

    axis: str
    ranks: int
    rank: int
    sliced: bool
    buckets: tuple[Bucket, ...]
    dtype: str = FLOAT32
    at_end: bool = False
    stages: int = 1

    @property
    def sends(self) -> bool:
        """Whether anybody else has a copy."""
        return self.ranks > 1

    def reduction(self, index: int) -> Call:
        """What averages a bucket."""
        operation, bucket = REDUCE_SCATTER.name if self.sliced else ALL_REDUCE.name, self.buckets[index]
        length = bucket.length if self.sliced else bucket.trained
        return Call(operation, self.axis, FLOAT32, self.ranks, BYTES[FLOAT32] * length, GRADIENTS)

    def sums(self) -> list[Call]:
        """What sums its gradients over stages."""
        sizes = [BYTES[FLOAT32] * bucket.length for bucket in self.buckets] if self.stages > 1 else []
        return [Call(ALL_REDUCE.name, "pp", FLOAT32, self.stages, size) for size in sizes]

    def gathering(self, index: int) -> Call:
        """What brings a bucket's new values to all."""
        size = BYTES[self.dtype] * self.buckets[index].length
        return Call(ALL_GATHER.name, self.axis, self.dtype, self.ranks, size)

    def partial_elements(self) -> int:
        """Values that this rank updates and whose gradients are partial over tp."""
        if not self.sliced:
            return sum(
                member.elements for bucket in self.buckets for member in bucket.members if member.partial
            )
        return sum(self._partial_slice(bucket) for bucket in self.buckets)

    def _partial_slice(self, bucket: Bucket) -> int:
        slice_length, offset, elements = bucket.length // self.ranks, 0, 0
        first = self.rank * slice_length
        for member in bucket.members:
            shared = min(offset + member.elements, first + slice_length) - max(offset, first)
            elements += max(0, shared) if member.partial else 0
            offset += member.elements
        return elements


@dataclass
class BackwardBuckets:
    """The buckets of one backward as they fill; each is sent as soon as it is full and those before it are gone."""

    shared: GradientGroup
    ready: set[str] = field(default_factory=set)
    next: int = 0

    def add(self, name: str) -> list[Call]:
        """What a complete gradient lets go."""
        if self.shared.at_end:
            return []
        self.ready.add(name)
        return self._send_buckets(lambda bucket: all(member.name in self.ready for member in bucket.members))

    def finish(self, delayed: bool = False) -> list[Call]:
        """What is left; of ``delayed`` gradients, which are averaged beside the next step, what comes before that."""
        return self.shared.sums() + ([] if delayed else self.send())

    def send(self) -> list[Call]:
        """All that was not sent."""
        return self._send_buckets(lambda _: True)

    def _send_buckets(self, full: Callable[[Bucket], bool]) -> list[Call]:
        calls = list[Call]()
        while self.shared.sends and self.next < len(self.shared.buckets):
            if not full(self.shared.buckets[self.next]):
                break
            calls.append(self.shared.reduction(self.next))
            self.next += 1
        return calls


REDUCTIONS = "reductions"


@dataclass
class Unit:
    """One unit's parameters, and how it stands."""

    name: int
    parameters: list[Parameter]
    gathered: bool = False
    under_way: bool = False
    forwards: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Policy:
    """What a configuration says about sharding."""

    layout: Layout
    dtype: str
    axis: str
    prefetch: int
    always_gathered: bool
    always_reduces: bool
    on_streams: bool
    fused: bool = True

    @classmethod
    def from_config(cls, config: RunConfig, on_streams: bool) -> Policy:
        """As ``engine.parallel.data.fsdp`` reads it; on a GPU gathers and reductions have streams of their own."""
        layout, parallel = layout_of(config), config.parallel
        whole = "dp" if layout.cp == 1 else "dp_cp"
        hybrid = 1 < layout.shard < layout.inner
        return cls(
            layout,
            BFLOAT16 if config.precision == "bf16" else FLOAT32,
            "dp_shard" if hybrid else whole,
            config.overlap.prefetch,
            parallel.zero_stage == 2,
            parallel.reduce_every_micro_batch,
            on_streams,
            config.overlap.fused_gathers,
        )

    @property
    def copies(self) -> int:
        """Ranks that hold the same slice."""
        return self.layout.inner // self.layout.shard

    @property
    def gathers_beside(self) -> bool:
        """Whether gathers do."""
        return self.on_streams or bool(self.prefetch)

    @property
    def reduces_beside(self) -> bool:
        """Whether reductions go on beside backward."""
        return self.on_streams or (bool(self.prefetch) and not self.always_reduces and self.copies == 1)


class Units:
    """The units of one stage through one step."""

    def __init__(self, policy: Policy, parameters: list[Parameter], blocks: int) -> None:
        self._policy, self._layers = policy, blocks
        members = {
            place: [parameter for parameter in parameters if parameter.block == place]
            for place in range(ROOT, blocks)
        }
        self._units = {name: Unit(name, of_unit) for name, of_unit in members.items() if of_unit}
        self._order = list[Unit]()
        self.keep = policy.always_gathered

    def begin_forward(self, name: int) -> Iterator[Item]:
        """A unit's forward begins."""
        yield from self._await_unit(name)
        for other in self._next_blocks(name):
            yield from self._gather(other)

    def end_forward(self, name: int) -> None:
        """It ended."""
        unit = self._units.get(name)
        if unit is None:
            return
        unit.gathered = self.keep
        unit.forwards.append(len(self._order))
        self._order.append(unit)

    def begin_backward(self, name: int) -> Iterator[Item]:
        """A unit's backward begins."""
        yield from self._await_unit(name)
        behind = self._previous_blocks(name)
        for other in behind:
            yield from self._gather(other)
        unit = self._units.get(name)
        if behind or unit is None or not unit.forwards:
            return
        place = unit.forwards.pop()
        if place:
            yield from self._gather(self._order[place - 1].name)

    def end_backward(self, name: int, last: bool) -> Iterator[Item]:
        """It ended; ``last`` of the step, gradients are complete."""
        unit, policy = self._units.get(name), self._policy
        if unit is None:
            return
        if last if policy.always_gathered else not self.keep:
            unit.gathered = False
        if last or policy.always_reduces:
            yield self._reduction(unit)
        if last and policy.copies > 1:
            elements = (
                sum(parameter.padded_elements(policy.layout.shard) for parameter in unit.parameters)
                // policy.layout.shard
            )
            size = BYTES[FLOAT32] * elements
            yield Call(ALL_REDUCE.name, "dp_replicate", FLOAT32, policy.copies, size)

    def forget(self) -> None:
        """After a stage's last backward of a step."""
        self._order.clear()
        for unit in self._units.values():
            unit.forwards.clear()
            unit.under_way = False

    def _await_unit(self, name: int) -> Iterator[Item]:
        yield from self._gather(name)
        unit = self._units.get(name)
        if unit is not None and unit.under_way:
            unit.under_way, unit.gathered = False, True
            if self._policy.gathers_beside:
                yield Join(_tag(name))

    def _gather(self, name: int) -> Iterator[Item]:
        unit, ranks = self._units.get(name), self._policy.layout.shard
        if unit is None or unit.gathered or unit.under_way:
            return
        unit.under_way = True
        sizes = [parameter.padded_elements(ranks) for parameter in unit.parameters]
        for elements in [sum(sizes)] if self._policy.fused else sizes:
            size = BYTES[self._policy.dtype] * elements
            call = Call(ALL_GATHER.name, self._policy.axis, self._policy.dtype, ranks, size)
            yield call.with_tag(_tag(name)) if self._policy.gathers_beside else call

    def _reduction(self, unit: Unit) -> Call:
        ranks = self._policy.layout.shard
        size = BYTES[FLOAT32] * sum(parameter.padded_elements(ranks) for parameter in unit.parameters)
        call = Call(REDUCE_SCATTER.name, self._policy.axis, FLOAT32, ranks, size)
        return call.with_tag(REDUCTIONS) if self._policy.reduces_beside else call

    def _next_blocks(self, name: int) -> range:
        """Blocks that a unit names in forward: those after it."""
        return range(name + 1, min(self._layers, name + 1 + self._policy.prefetch))

    def _previous_blocks(self, name: int) -> range:
        """In backward: those before it."""
        end = self._layers if name == ROOT else name
        return range(end - 1, max(-1, end - 1 - self._policy.prefetch), -1)


def _tag(name: int) -> str:
    return "root" if name == ROOT else f"block {name}"
