"""Parameters whose gradients are averaged over one group of ranks, updated whole or in slices (ZeRO stage 1).

Parameters in bf16 keep an fp32 copy that the optimizer updates (arXiv 1710.03740): updates below their resolution
would be lost. With the optimizer offloaded that copy and AdamW's state are in host memory (arXiv 2101.06840):
gradients go down, new weights come back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.comm.channel import Channel, Group, Waitable
from engine.compression.compressor import GradientCompressor
from engine.compression.interface import Content, MethodState, Reduction, content_of
from engine.config.compression import NO_PLAN, Plan, settings_of, settings_with
from engine.config.run_config import RunConfig
from engine.config.sections import Memory
from engine.model.activation_memory import copy_to_host
from engine.model.experts.slots import slots_of
from engine.parallel.data.buckets import Bucket, GradientBuckets
from engine.parallel.data.replica import (
    Extent,
    Piece,
    ReplicaMemory,
    UpdateGroup,
    extent,
    partial_over_tp,
    trained_part,
)
from profilers.steps.timer import StepTimer


@dataclass(frozen=True, slots=True)
class MemoryOwner:
    """The rank that carries what compression keeps from step to step: its parameters, and its (place, number) among
    the ranks with copies, and over tp.
    """

    parameters: Mapping[str, nn.Parameter]
    ranks: tuple[int, int]
    tp: tuple[int, int]

    def tp_suffix(self, name: str) -> str:
        """Tells ranks apart that tp gave the same parameter: their gradients differ."""
        place, size = self.tp
        return f".tp{place}of{size}" if size > 1 and partial_over_tp(self.parameters[name]) else ""


def error_memories(
    compressor: GradientCompressor, content: Content, owner: MemoryOwner
) -> list[ReplicaMemory]:
    """One bucket's error memory, which is another one on each rank, and what a method keeps beside it."""
    errors = compressor.memory(content)
    memories = [_replica_memory(state, owner) for state in compressor.state(content)]
    if errors is None:
        return memories
    place, size = owner.ranks
    return memories + [
        ReplicaMemory(
            f"{part.name}.{place}of{size}{owner.tp_suffix(part.name)}",
            errors[part.start : part.stop],
            extent(owner.parameters[part.name]),
        )
        for part in content.parts
    ]


def _replica_memory(state: MethodState, owner: MemoryOwner) -> ReplicaMemory:
    """By element it lies where the parameter does; with a shape it belongs to the part of it that the rank holds."""
    name, lies = (
        f"{state.part.name}.{state.kind}{owner.tp_suffix(state.part.name)}",
        extent(owner.parameters[state.part.name]),
    )
    if state.shape is None:
        place, size = owner.ranks
        own = f".{place}of{size}" if state.differs_by_rank else ""
        return ReplicaMemory(f"{name}{own}", state.values, lies.with_start(state.first))
    if lies.sizes != lies.shape:
        name += f".at{'-'.join(map(str, lies.offsets))}"
    whole = Extent(state.shape, (0,) * len(state.shape), state.shape)
    return ReplicaMemory(name, state.values, whole, may_start_anew=True)


def delayed_averages(pieces: list[Piece], owner: MemoryOwner) -> list[ReplicaMemory]:
    """Averages that the next step applies, of what this rank updates; the same on all ranks that update it."""
    return [
        ReplicaMemory(
            f"{piece.name}.delayed{owner.tp_suffix(piece.name)}", piece.gradient().flatten(), piece.extent
        )
        for piece in pieces
    ]


class MasterWeights:
    """Makes the weights that are updated, and brings them back into the parameters."""

    def __init__(self, memory: Memory) -> None:
        self._offload = memory.offload in ("optimizer", "both")
        self._dtype = torch.bfloat16 if memory.parameters == "bf16" else None
        self._parts: list[Tensor] = []
        self._weights: list[Tensor] = []

    def narrow(self, parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, Tensor]:
        """Give parameters the dtype they compute in; returns the fp32 values they had."""
        values = {}
        for parameter in parameters:
            values[parameter] = parameter.detach()
            if self._dtype is not None and parameter.dtype != self._dtype:
                parameter.data = parameter.data.to(self._dtype)
        return values

    def weight(self, part: Tensor, values: Tensor) -> nn.Parameter:
        """What to update for a part of a parameter with these fp32 values: the part itself where that will do."""
        if not self._offload and part.dtype == values.dtype:
            return nn.Parameter(part)
        master = copy_to_host(values) if self._offload else values.detach().clone()
        self._parts.append(part)
        self._weights.append(master)
        return nn.Parameter(master)

    @torch.no_grad()
    def write_back(self) -> None:
        """The new weights into the parameters, rounded to their dtype."""
        for part, weight in zip(self._parts, self._weights, strict=True):
            part.copy_(weight, non_blocking=True)


@dataclass(frozen=True)
class SharedParameters:
    """Parameters by name and the ranks that hold copies of them; None for a single one.

    Gradients are averaged over ``group`` and divided by ``spread``, the number of ranks that hold other experts.
    ``late_parameters`` get their gradients outside autograd's backward. ``tp_rank`` tells copies over tp apart.

    Gradients ``at_end`` are complete only when all backwards of a step are through; then they are summed over
    ``between_stages``, the ranks of a pipeline with stages that hold these parameters, too, before they are averaged.
    """

    parameters: dict[str, nn.Parameter]
    group: Group | None
    spread: int = 1
    late_parameters: Collection[nn.Parameter] = ()
    tp_rank: int = 0
    at_end: bool = False
    between_stages: Channel | None = None

    @property
    def ranks(self) -> int:
        """Number of copies."""
        return 1 if self.group is None else self.group.size()

    @property
    def stages(self) -> int:
        """Number of a pipeline's ranks that hold them."""
        return 1 if self.between_stages is None else self.between_stages.size


class AveragedParameters:
    """Sent per step: an all-reduce per bucket, in total 4 bytes a parameter without compression."""

    #: Gradients are sent once a step.
    turns = 1
    #: Whether new values go to other ranks beside the next forward.
    arrives_later = False
    _needs_slices = False

    def __init__(self, shared: SharedParameters, config: RunConfig, timer: StepTimer, tp_size: int) -> None:
        self.shared, self._timer, self._tp_size = shared, timer, tp_size
        self._config = config
        self._masters, self._pieces = MasterWeights(config.memory), list[Piece]()
        self._values = self._masters.narrow(shared.parameters.values())
        self.compressor: GradientCompressor | None = None
        #: Sees each bucket's gradient before it is compressed.
        self.watch: Callable[[Content], None] | None = None
        self._plan = NO_PLAN
        self.buckets = GradientBuckets(
            list(shared.parameters.values()),
            self._average if shared.ranks > 1 or shared.spread > 1 else None,
            config.overlap.bucket_mb * 2**20,
            self._padding(),
            () if shared.at_end else shared.late_parameters,
            self._wait,
            config.overlap.delay > 0,
        )
        self.contents = self._contents()
        if shared.group is not None:
            self.compressor = self._compressor(shared.group)

    @property
    def group(self) -> Group:
        """Over which gradients are averaged."""
        assert self.shared.group is not None, "a single copy is averaged with no other"
        return self.shared.group

    @property
    def copies(self) -> int:
        """Ranks whose gradients of a parameter are averaged, or summed and averaged."""
        return self.shared.ranks * self.shared.stages

    def arm(self) -> None:
        """A backward begins that completes gradients, unless others add to them."""
        if not self.shared.at_end:
            self.buckets.arm()

    def finish(self) -> None:
        """After all backwards of a step: wait until gradients are averaged."""
        if self.shared.at_end:
            self._sum_over_stages()
            self.buckets.arm()
        self.buckets.finish()

    def pieces(self) -> list[Piece]:
        """What this rank updates; the same objects at every call."""
        if not self._pieces:
            self._pieces = self._make_pieces()
            self._values.clear()
        return self._pieces

    def memories(self) -> list[ReplicaMemory]:
        """What compression and delay carry from step to step for each parameter."""
        self.buckets.drain()
        owner = MemoryOwner(self.shared.parameters, self._ranks(), (self.shared.tp_rank, self._tp_size))
        memories = delayed_averages(self.pieces(), owner) if self._config.overlap.delay else []
        if self.compressor is None:
            return memories
        return memories + [
            memory for content in self.contents for memory in error_memories(self.compressor, content, owner)
        ]

    @property
    def has_averages(self) -> bool:
        """Whether there are averages to apply: delayed ones not before the second step."""
        return self.buckets.has_averages

    def mark_loaded(self) -> None:
        """Delayed gradients were loaded."""
        self.buckets.has_averages = True

    def wait_for_weights(self, parameters: Iterable[nn.Parameter]) -> None:
        """Wait until these have their new values."""

    def waves(self) -> list[UpdateGroup]:
        """What is updated and brought to the others at once."""
        return [UpdateGroup(self.pieces())]

    def uncompressed_reasons(self) -> dict[str, str]:
        """Parameters that compression leaves alone though it is on, and why."""
        if self.compressor is None:
            return {}
        reasons = [self.compressor.uncompressed_reasons(content) for content in self.contents]
        return {name: reason for by_name in reasons for name, reason in by_name.items()}

    def reconfigure(self, config: RunConfig) -> None:
        """Between two steps: other buckets, or another compression. Gradients summed so far and what was left out of
        earlier ones go on as they are.
        """
        self.buckets.drain()
        before, self._config = self._config, config
        if config.overlap.bucket_mb != before.overlap.bucket_mb:
            old = self.contents
            self.buckets.rebuild(config.overlap.bucket_mb * 2**20)
            self.contents = self._contents()
            if self.compressor is not None:
                self.compressor.move(old, self.contents)
        if self.compressor is not None and config.compression != before.compression:
            self.compressor.use(settings_with(config.compression, self._plan))

    def follow(self, plan: Plan) -> None:
        """Between two steps: compress as a plan says where the configuration leaves it to one."""
        self._plan = plan
        self.buckets.drain()
        if self.compressor is not None:
            self.compressor.use(settings_with(self._config.compression, plan))

    def finish_update(self) -> None:
        """Bring new weights into the parameters, on every rank alike."""
        self.publish_weights()
        self.buckets.clear()

    def publish_weights(self) -> None:
        """Bring new weights into the parameters where no gradients were applied."""
        self._masters.write_back()
        for slots in {
            id(expert_slots): expert_slots
            for expert_slots in map(slots_of, self.shared.parameters.values())
            if expert_slots
        }.values():
            slots.forget()
        self._send_values()

    def drain(self) -> None:
        """Wait for all that is under way."""
        self.buckets.drain()

    def close(self) -> None:
        """Take hooks and gradients from the parameters."""
        self.buckets.close()

    def _sum_over_stages(self) -> None:
        """Buckets are alike on all of these ranks: they hold the same parameters in the same order."""
        if (channel := self.shared.between_stages) is not None:
            with self._timer.phase("communication_exposed"):
                for bucket in self.buckets.buckets:
                    channel.all_reduce(bucket.flat)

    def _make_pieces(self) -> list[Piece]:
        """Every parameter as a whole."""
        pieces = []
        for name, parameter in self.shared.parameters.items():
            home: Tensor | None = getattr(parameter, "home", None)
            if home is None:
                weight = self._masters.weight(parameter.detach(), self._values[parameter])
            else:  # experts are updated where they lie
                weight = nn.Parameter(home)
            pieces.append(self._piece(name, parameter, weight, self._gradient(parameter), self.shared.ranks))
        return pieces

    def _gradient(self, parameter: nn.Parameter) -> Callable[[], Tensor]:
        """Where it is: buckets may be dealt anew."""
        return lambda: self.buckets.averages[parameter]

    def _send_values(self) -> None:
        """Other ranks need no values of this one."""

    def _padding(self) -> int:
        return 1

    def _piece(
        self,
        name: str,
        whole: nn.Parameter,
        weight: nn.Parameter,
        gradient: Callable[[], Tensor],
        copies: int,
        start: int = 0,
    ) -> Piece:
        partial, place = partial_over_tp(whole), extent(whole).with_start(start)
        copies *= self.shared.stages * (self._tp_size if partial else 1)
        return Piece(name, weight, gradient, whole.ndim > 1, partial, copies, place)

    def _contents(self) -> list[Content]:
        names = {parameter: name for name, parameter in self.shared.parameters.items()}
        return [
            content_of(bucket.index, bucket.flat, {names[p]: tuple(p.shape) for p in bucket.parameters})
            for bucket in self.buckets.averaged
        ]

    def _ranks(self) -> tuple[int, int]:
        """This rank's place among those that hold copies, and their number."""
        return (0, 1) if self.shared.group is None else (self.shared.group.rank(), self.shared.ranks)

    def _compressor(self, group: Group) -> GradientCompressor:
        settings, device = settings_of(self._config.compression), self.buckets.averaged[0].flat.device
        seed, one_way = self._config.train.seed, self._needs_slices
        return GradientCompressor(settings, group, seed, lambda: self._timer.step, device, one_way)

    def _average(self, bucket: Bucket) -> Reduction:
        self._see(bucket)
        if self.compressor is None:
            return
        content, views = self.contents[bucket.index], self._trained_gradients(bucket)
        if views and not self._needs_slices and self.compressor.sends_all(content):
            yield from self.compressor.average(views)
        else:
            yield from self.compressor.reduce(content)

    def _trained_gradients(self, bucket: Bucket) -> list[Tensor]:
        """The gradient of what this step trains of a bucket's parameters; empty if that is all of them."""
        parts = [trained_part(parameter) for parameter in bucket.parameters]
        if not any(parts):
            return []
        views = zip(parts, bucket.views(), strict=True)
        return [gradient for part, (_, view) in views for gradient in (part.views(view) if part else [view])]

    def _see(self, bucket: Bucket) -> None:
        """A rank's gradient as it is averaged, for who watches."""
        if self.shared.spread > 1:
            bucket.flat.div_(self.shared.spread)
        if self.watch is not None:
            self.watch(self.contents[bucket.index])

    def _wait(self, under_way: Waitable) -> None:
        with self._timer.phase("communication_exposed"):
            under_way.wait()
