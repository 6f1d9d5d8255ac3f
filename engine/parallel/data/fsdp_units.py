"""The groups of parameters that FSDP2 gathers and reduces together: how each is sent, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from engine.comm.channel import Channel
from engine.compression.interface import Part
from engine.compression.non_gradients import CoarseShards, Slice
from engine.model.decoder import Decoder
from engine.model.mixture import ExpertLinear
from engine.parallel.data.fsdp_comm import Gather, Reduce, Reductions
from profilers import torch_private


@dataclass(frozen=True, slots=True)
class Held:
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
        self.held: tuple[Held, ...] = ()
        #: Of this rank among all that hold copies of slices.
        self.place = f"{_place(mesh)}of{mesh.size()}"

    def name(self, names: Mapping[nn.Parameter, str]) -> None:
        """Learn what it holds; ``names`` of the parameters that sharding made."""
        self.held = tuple(
            Held(
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
        slices = [Slice(one.padded, len(one.shape) == 1) for one in self.held]
        coarse = weights != "none" and self.channel.size > 1 and not all(one.is_vector for one in slices)
        self.gather.coarse = CoarseShards(slices, self.channel.size, block, dtype) if coarse else None

    def _parts(self) -> list[Part]:
        """What each rank gets of each parameter, one rank after the other."""
        found, start, ranks = list[Part](), 0, self.channel.size
        for rank in range(ranks):
            for one in self.held:
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
