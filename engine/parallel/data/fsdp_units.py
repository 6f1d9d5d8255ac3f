"""The groups of parameters that FSDP2 gathers and reduces together: how each is sent, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from engine.comm.channel import Channel, Group
from engine.compression.compressor import GradientCompressor
from engine.compression.interface import Content, Part
from engine.config.compression import NO_PLAN, Plan, settings_of, settings_with
from engine.config.layout import accumulation
from engine.config.run_config import RunConfig
from engine.model.experts.mixture import ExpertLinear
from engine.model.stage import Stage
from engine.parallel.data.fsdp_comm import CoarseShards, Gather, Reduce, Reductions, Slice
from engine.parallel.data.replica import Extent, ReplicaMemory
from profilers import torch_private
from profilers.steps.timer import StepTimer


@dataclass(frozen=True, slots=True)
class UnitParameter:
    """One parameter of a unit: its name, whole shape, and the values of each rank's slice, padding included."""

    name: str
    shape: tuple[int, ...]
    padded: int

    def slice_values(self, rank: int, ranks: int) -> int:
        """Values of a rank's slice that are no padding: FSDP2 deals rows as ``chunk`` does."""
        rows, width = self.shape[0], self.padded // -(-self.shape[0] // ranks)
        rank_rows = -(-rows // ranks)
        return max(0, min(rank_rows, rows - rank * rank_rows)) * width


class Unit:
    """The own parameters of a module, or of several that share them."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        mesh: DeviceMesh,
        options: dict[str, Any],
        spread: int,
        reductions: Reductions,
        index: int,
    ) -> None:
        device = torch.device(mesh.device_type)
        self.channel = Channel(mesh.get_group(mesh.ndim - 1), device)
        fully_shard(list(modules), mesh=mesh, **options)
        assert isinstance(modules[0], FSDPModule)
        self.sharded: FSDPModule = modules[0]
        self.gather = Gather(self.channel)
        self.reduce = Reduce(self.channel, spread, reductions, index)
        self.sharded.set_custom_all_gather(self.gather)  # type: ignore[arg-type]
        self.sharded.set_custom_reduce_scatter(self.reduce)  # type: ignore[arg-type]
        if mesh.size() == 1 and spread > 1:  # then nothing is scattered, and FSDP2 divides by itself
            self.sharded.set_gradient_divide_factor(spread)
        self.parameters: tuple[UnitParameter, ...] = ()
        #: Of this rank among all that hold copies of slices, and their number.
        self.place, self.copies = f"{_place(mesh)}of{mesh.size()}", mesh.size()

    def name(self, names: Mapping[nn.Parameter, str]) -> None:
        """Learn what it holds; ``names`` of the parameters that sharding made."""
        self.parameters = tuple(
            UnitParameter(
                names[parameter.sharded_param],
                torch_private.whole_shape(parameter),
                parameter.padded_sharded_param_size.numel(),
            )
            for group in torch_private.fsdp_groups(self.sharded)
            for parameter in group.fsdp_params
        )
        self.reduce.parts = tuple(self._parts())

    def use(self, weights: str, block: int, dtype: torch.dtype, fused: bool = True) -> None:
        """What parameters are gathered in from now on, and whether all of them at once."""
        slices = [Slice(parameter.padded, len(parameter.shape) == 1) for parameter in self.parameters]
        coarse = weights != "none" and self.channel.size > 1 and not all(slice.is_vector for slice in slices)
        self.gather.coarse = CoarseShards(slices, self.channel.size, block, dtype) if coarse else None
        self.gather.apart = () if fused else tuple(slice.count for slice in slices)

    def _parts(self) -> list[Part]:
        """What each rank gets of each parameter, one rank after the other."""
        parts, start, ranks = list[Part](), 0, self.channel.size
        for rank in range(ranks):
            for parameter in self.parameters:
                count = parameter.slice_values(rank, ranks)
                if count:
                    parts.append(Part(parameter.name, (count,), start, start + count))
                start += parameter.padded
        return parts


def _place(mesh: DeviceMesh) -> int:
    place = 0
    for dim in range(mesh.ndim):
        place = place * mesh.size(dim) + mesh.get_local_rank(dim)
    return place


def prefetch(model: Stage, layers: int) -> None:
    """Have each layer start to gather those so many layers ahead, in forward and in backward; 0 leaves it to FSDP2."""
    of_blocks = [_members(blocks[0]) for blocks in model.groups()]
    for place, (block, *experts) in enumerate(of_blocks):
        ahead = [module for later in of_blocks[place + 1 : place + 1 + layers] for module in later]
        behind = [module for before in of_blocks[max(0, place - layers) : place][::-1] for module in before]
        block.set_modules_to_forward_prefetch([*experts, *ahead] if layers else [])
        block.set_modules_to_backward_prefetch([*experts[::-1], *behind] if layers else [])
    assert isinstance(model, FSDPModule)
    first, last = of_blocks[:layers], of_blocks[max(0, len(of_blocks) - layers) :][::-1]
    model.set_modules_to_forward_prefetch([module for block in first for module in block])
    model.set_modules_to_backward_prefetch([module for block in last for module in block] if layers else [])
    if model.device.type == "cpu":
        torch_private.gather_asynchronously(model, layers > 0)


def _members(block: nn.Module) -> Sequence[FSDPModule]:
    experts = [module for module in block.modules() if isinstance(module, ExpertLinear)]
    return [module for module in (block, *experts) if isinstance(module, FSDPModule)]


class CoarseGroup:
    """Units whose slices go over the same ranks, and their compressor; a replica's part as ``Compressed``."""

    def __init__(self, units: Sequence[Unit], config: RunConfig, timer: StepTimer) -> None:
        channel = units[0].channel
        self.units, self.group, self.copies = units, channel.group, units[0].copies
        self._config, self._plan = config, NO_PLAN
        settings, seed = settings_of(config.compression), config.train.seed
        self.compressor: GradientCompressor | None
        self.compressor = self.coder = GradientCompressor(
            settings, channel.group, seed, lambda: timer.step, channel.device, one_way=True
        )
        for unit in units:
            unit.reduce.compressor = self.coder

    @property
    def watch(self) -> Callable[[Content], None] | None:
        """Sees each unit's gradient before it is compressed."""
        return self.units[0].reduce.watch

    @watch.setter
    def watch(self, see: Callable[[Content], None] | None) -> None:
        for unit in self.units:
            unit.reduce.watch = see

    @property
    def contents(self) -> list[Content]:
        """Without values."""
        return [content_of_unit(unit, torch.device("meta")) for unit in self.units]

    @property
    def turns(self) -> int:
        """How often a step sends them."""
        return accumulation(self._config) if self._config.parallel.reduce_every_micro_batch else 1

    def follow(self, plan: Plan) -> None:
        """Between two steps: compress as a plan says where the configuration leaves it to one."""
        self._plan = plan
        self.coder.use(settings_with(self._config.compression, plan))

    def reconfigure(self, config: RunConfig) -> None:
        """Between two steps: as this configuration says from now on."""
        before, self._config = self._config, config
        if config.compression != before.compression:
            self.coder.use(settings_with(config.compression, self._plan))

    def uncompressed_reasons(self) -> dict[str, str]:
        """Parameters with slices that are sent as they are though a method is chosen, and why."""
        # A compressor prepares for a bucket once: not for one without values.
        contents = [content_of_unit(unit, unit.channel.device) for unit in self.units]
        return {
            name: why
            for content in contents
            for name, why in self.coder.uncompressed_reasons(content).items()
        }


class CoarseGradients:
    """The compressors of units; ``over_tp`` tells copies of a parameter apart by name."""

    def __init__(
        self, units: Sequence[Unit], config: RunConfig, timer: StepTimer, over_tp: Mapping[str, str]
    ) -> None:
        sent = [unit for unit in units if unit.channel.size > 1 and unit.parameters]
        of_group: dict[Group, list[Unit]] = {}
        for unit in sent:
            of_group.setdefault(unit.channel.group, []).append(unit)
        self.groups = [CoarseGroup(members, config, timer) for members in of_group.values()]
        self._over_tp = over_tp

    def reconfigure(self, config: RunConfig) -> None:
        """Between two steps: as this configuration says from now on."""
        for group in self.groups:
            group.reconfigure(config)

    def uncompressed_reasons(self) -> dict[str, str]:
        """Parameters with slices that are sent as they are though a method is chosen, and why."""
        return {name: why for group in self.groups for name, why in group.uncompressed_reasons().items()}

    def memories(self, extents: Mapping[str, Extent]) -> list[ReplicaMemory]:
        """Of each parameter one for every rank that gets a slice of it."""
        return [
            memory
            for group in self.groups
            for unit in group.units
            for memory in self._memories_of(unit, group.coder, extents)
        ]

    def _memories_of(
        self, unit: Unit, compressor: GradientCompressor, extents: Mapping[str, Extent]
    ) -> Iterator[ReplicaMemory]:
        content = content_of_unit(unit, unit.channel.device)
        errors = compressor.memory(content)
        if errors is None:
            return
        slice_size, ranks = len(content.flat) // unit.channel.size, unit.channel.size
        for part in (part for part in content.parts if part.count):
            lies = extents[part.name]
            offsets = "" if lies.sizes == lies.shape else f".at{'-'.join(map(str, lies.offsets))}"
            slice_name = f"slice{part.start // slice_size}of{ranks}"
            name = f"{part.name}{offsets}.{unit.place}.{slice_name}{self._over_tp.get(part.name, '')}"
            # A tensor of its own: under a name that has the parameter's shape a checkpoint wants all of its elements.
            whole = Extent((part.count,), (0,), (part.count,))
            yield ReplicaMemory(name, errors[part.start : part.stop], whole)


def content_of_unit(unit: Unit, device: torch.device) -> Content:
    """As large as its gradients, without their values."""
    size = sum(parameter.padded for parameter in unit.parameters) * unit.channel.size
    return unit.reduce.content(torch.empty(size, device=device))
