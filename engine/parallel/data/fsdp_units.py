"""The groups of parameters that FSDP2 gathers and reduces together: how each is sent, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from engine.comm.channel import Channel, Group
from engine.compression.compressor import GradientCompressor
from engine.compression.interface import Content, Part
from engine.config.compression import settings_of
from engine.config.run_config import RunConfig
from engine.model.decoder import Decoder
from engine.model.mixture import ExpertLinear
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

    def own(self, rank: int, ranks: int) -> int:
        """Values of a rank's slice that are no padding: FSDP2 deals rows as ``chunk`` does."""
        rows, width = self.shape[0], self.padded // -(-self.shape[0] // ranks)
        each = -(-rows // ranks)
        return max(0, min(each, rows - rank * each)) * width


class Unit:
    """One module's own parameters."""

    def __init__(
        self,
        module: nn.Module,
        mesh: DeviceMesh,
        options: dict[str, Any],
        spread: int,
        reductions: Reductions,
        index: int,
    ) -> None:
        device = torch.device(mesh.device_type)
        self.channel = Channel(mesh.get_group(mesh.ndim - 1), device)
        self.sharded: FSDPModule = fully_shard(module, mesh=mesh, **options)
        self.gather = Gather(self.channel)
        self.reduce = Reduce(self.channel, spread, reductions, index)
        self.sharded.set_custom_all_gather(self.gather)  # type: ignore[arg-type]
        self.sharded.set_custom_reduce_scatter(self.reduce)  # type: ignore[arg-type]
        if mesh.size() == 1 and spread > 1:  # then nothing is scattered, and FSDP2 divides by itself
            self.sharded.set_gradient_divide_factor(spread)
        self.parameters: tuple[UnitParameter, ...] = ()
        #: Of this rank among all that hold copies of slices.
        self.place = f"{_place(mesh)}of{mesh.size()}"

    def name(self, names: Mapping[nn.Parameter, str]) -> None:
        """Learn what it holds; ``names`` of the parameters that sharding made."""
        self.parameters = tuple(
            UnitParameter(
                names[one.sharded_param],
                torch_private.whole_shape(one),
                one.padded_sharded_param_size.numel(),
            )
            for group in torch_private.fsdp_groups(self.sharded)
            for one in group.fsdp_params
        )
        self.reduce.parts = tuple(self._parts())

    def use(self, weights: str, block: int, dtype: torch.dtype) -> None:
        """What parameters are gathered in from now on."""
        slices = [Slice(one.padded, len(one.shape) == 1) for one in self.parameters]
        coarse = weights != "none" and self.channel.size > 1 and not all(one.is_vector for one in slices)
        self.gather.coarse = CoarseShards(slices, self.channel.size, block, dtype) if coarse else None

    def _parts(self) -> list[Part]:
        """What each rank gets of each parameter, one rank after the other."""
        found, start, ranks = list[Part](), 0, self.channel.size
        for rank in range(ranks):
            for one in self.parameters:
                count = one.own(rank, ranks)
                if count:
                    found.append(Part(one.name, (count,), start, start + count))
                start += one.padded
        return found


def _place(mesh: DeviceMesh) -> int:
    place = 0
    for dim in range(mesh.ndim):
        place = place * mesh.size(dim) + mesh.get_local_rank(dim)
    return place


def prefetch(decoder: Decoder, layers: int) -> None:
    """Have each layer start to gather those so many layers ahead, in forward and in backward; 0 leaves it to FSDP2."""
    of_blocks = [_members(block) for block in decoder.blocks.values()]
    for place, (block, *experts) in enumerate(of_blocks):
        ahead = [one for later in of_blocks[place + 1 : place + 1 + layers] for one in later]
        behind = [one for before in of_blocks[max(0, place - layers) : place][::-1] for one in before]
        block.set_modules_to_forward_prefetch([*experts, *ahead] if layers else [])
        block.set_modules_to_backward_prefetch([*experts[::-1], *behind] if layers else [])
    assert isinstance(decoder, FSDPModule)
    first, last = of_blocks[:layers], of_blocks[max(0, len(of_blocks) - layers) :][::-1]
    decoder.set_modules_to_forward_prefetch([one for block in first for one in block])
    decoder.set_modules_to_backward_prefetch([one for block in last for one in block] if layers else [])
    if decoder.rotary.device.type == "cpu":
        decoder._set_unshard_async_op(layers > 0)


def _members(block: nn.Module) -> Sequence[FSDPModule]:
    experts = [one for one in block.modules() if isinstance(one, ExpertLinear)]
    return [one for one in (block, *experts) if isinstance(one, FSDPModule)]


class CoarseGradients:
    """Sets the compressors of units; ``over_tp`` tells copies of a parameter apart by name."""

    def __init__(
        self, units: Sequence[Unit], config: RunConfig, timer: StepTimer, over_tp: Mapping[str, str]
    ) -> None:
        self._units = [unit for unit in units if unit.channel.size > 1 and unit.parameters]
        self._over_tp, self._config = over_tp, config
        self._compressors: dict[Group, GradientCompressor] = {}
        settings, seed = settings_of(config.compression), config.train.seed
        for unit in self._units:
            group, device = unit.channel.group, unit.channel.device
            if group not in self._compressors:
                self._compressors[group] = GradientCompressor(
                    settings, group, seed, lambda: timer.step, device, one_way=True
                )
            unit.reduce.compressor = self._compressors[group]

    def reconfigure(self, config: RunConfig) -> None:
        """Between two steps: as this configuration says from now on."""
        before, self._config = self._config, config
        if config.compression != before.compression:
            for compressor in self._compressors.values():
                compressor.use(settings_of(config.compression))

    def uncompressed(self) -> dict[str, str]:
        """Parameters with slices that are sent as they are though a method is chosen, and why."""
        reasons = dict[str, str]()
        for unit in self._units:
            reasons |= self._compressors[unit.channel.group].uncompressed(self._content(unit))
        return reasons

    def memories(self, extents: Mapping[str, Extent]) -> list[ReplicaMemory]:
        """Of each parameter one for every rank that gets a slice of it."""
        return [memory for unit in self._units for memory in self._memories_of(unit, extents)]

    def _memories_of(self, unit: Unit, extents: Mapping[str, Extent]) -> Iterator[ReplicaMemory]:
        content = self._content(unit)
        errors = self._compressors[unit.channel.group].memory(content)
        if errors is None:
            return
        each, ranks = len(content.flat) // unit.channel.size, unit.channel.size
        for part in (part for part in content.parts if part.count):
            lies = extents[part.name]
            held = "" if lies.sizes == lies.shape else f".at{'-'.join(map(str, lies.offsets))}"
            slice_ = f"slice{part.start // each}of{ranks}"
            name = f"{part.name}{held}.{unit.place}.{slice_}{self._over_tp.get(part.name, '')}"
            # A tensor of its own: under a name that has the parameter's shape a checkpoint wants all of its elements.
            whole = Extent((part.count,), (0,), (part.count,))
            yield ReplicaMemory(name, errors[part.start : part.stop], whole)

    def _content(self, unit: Unit) -> Content:
        """As large as its gradients, without their values."""
        size = sum(one.padded for one in unit.parameters) * unit.channel.size
        return unit.reduce.content(torch.empty(size, device=unit.channel.device))
