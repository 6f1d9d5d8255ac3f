"""ZeRO stages 2 and 3 and hybrid sharding by FSDP2: each rank keeps a slice of every parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from engine.comm.channel import Group
from engine.config.run_config import RunConfig
from engine.model.experts.mixture import ExpertLinear
from engine.model.stage import Stage
from engine.parallel.data.averaging import MasterWeights
from engine.parallel.data.ddp import DataParallel
from engine.parallel.data.fsdp_comm import Reductions
from engine.parallel.data.fsdp_units import CoarseGradients, Unit, prefetch
from engine.parallel.data.replica import (
    CompressedGradients,
    Piece,
    ReplicaMemory,
    UpdateGroup,
    extent,
    is_expert,
    partial_over_tp,
)
from engine.parallel.data.tied_gradients import StageSharedParameters
from engine.parallel.tensor import sum_gradients
from profilers.steps.timer import StepTimer


class FullyShardedReplica:
    """A stage whose parameters, gradients and optimizer state are split over data ranks (arXiv 1910.02054).

    Sent per step: a reduce-scatter of each block's gradients, and all-gathers of each block: in stage 3 for every
    forward and every backward, in stage 2 once, since gathered blocks are kept until the last backward. A hybrid
    mesh [replicate, shard] splits over ``shard`` and all-reduces the slices over ``replicate``.

    With precision bf16 the slices stay fp32 and what is gathered is bf16; gradients are summed over micro-batches and
    ranks in fp32. That is all that ``memory.parameters`` = bf16 asks for, so here it changes nothing. Parameters that
    compute in fp32 then are not sharded but in ``unsharded``, and a message of their own averages their gradients.

    With ``parallel.reduce_every_micro_batch`` gradients are scattered after every backward, not summed as a whole
    until the last: m times the bytes for slices in place of whole gradients. Replicas are still summed over once.
    """

    def __init__(
        self,
        model: Stage,
        unsharded: DataParallel,
        meshes: Meshes,
        config: RunConfig,
        tp_size: int,
        timer: StepTimer,
        shared: StageSharedParameters | None = None,
    ) -> None:
        self._rest, self._timer = unsharded, timer
        self._whole = {parameter for part in unsharded.parts for parameter in part.shared.parameters.values()}
        self._always = self._kept = config.parallel.zero_stage == 2
        self._tp_size, self._pieces = tp_size, list[Piece]()
        self._masters = MasterWeights(config.memory)
        # Sharding makes other parameters of them.
        named = model.model_parameters()
        self._partial = {name for name, parameter in named.items() if partial_over_tp(parameter)}
        self._experts = {name for name, parameter in named.items() if is_expert(parameter)}
        self._extents = {name: extent(parameter) for name, parameter in named.items()}
        split = [name for name, parameter in named.items() if parameter not in self._whole]
        self._meetings = [] if shared is None else shared.sets(split)
        self._stages = {name: channel.size for channel, names in self._meetings for name in names}
        self._slices = {False: _slices(meshes.dense), True: _slices(meshes.experts or meshes.dense)}
        self._copies = meshes.dense.size(0) if meshes.dense.ndim == 2 else 1
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        options: dict[str, Any] = {"reshard_after_forward": not self._always, "ignored_params": self._whole}
        options |= {"mp_policy": policy} if model.narrows(config) else {}
        self._reductions = Reductions(lambda: timer.phase("communication_exposed"))
        self._units = list(_units(model, meshes, options, self._reductions))
        assert isinstance(model, FSDPModule)
        self.model: Stage = model
        self._sharded: FSDPModule = model
        tp = model.tp  # tp may have given several ranks the same parameter
        copies = {name: f".tp{tp.rank}of{tp.size}" for name in self._partial if tp.size > 1}
        for channel, names in self._meetings:  # each stage sends gradients of its own
            copies |= {name: f"{copies.get(name, '')}.pp{channel.rank}of{channel.size}" for name in names}
        self._coarse = CoarseGradients(self._units, config, timer, copies)
        self._use(config)

    def forward(self, x: Tensor) -> Tensor:
        """The stage's output."""
        out: Tensor = self.model(x)
        return out

    def backward(self, output: Tensor, gradient: Tensor | None, last: bool) -> None:
        """Backward; gradients stay local until the last micro-batch, or until this one's are there."""
        self._sharded.set_is_last_backward(last)
        self._sharded.set_requires_gradient_sync(last or self._always_reduces)
        self._sharded.set_requires_all_reduce(last)
        if self._always:
            self._sharded.set_reshard_after_backward(last)
        self._rest.backward(output, gradient, last)

    def add_gradient(self, parameter: nn.Parameter, gradient: Tensor, last: bool) -> None:
        """Not possible: the gathered parameter is gone when its backward returns."""
        raise NotImplementedError(
            "a split backward needs whole parameters; rules refuse it under ZeRO 2 and 3"
        )

    def keep_gathered(self, keep: bool) -> None:
        """Blocks are then gathered once for many micro-batches."""
        if keep != self._kept and not self._always:
            self._kept = keep
            self._sharded.set_reshard_after_forward(not keep)
            self._sharded.set_reshard_after_backward(not keep)

    def finish(self) -> None:
        """Wait for the reductions that go on beside backward; the others were waited for in it. Slices of what other
        stages hold, too, are summed: data ranks of all stages have the same rows of a parameter.
        """
        self._reductions.finish()
        if self._meetings:
            named = self.model.model_parameters()
            with self._timer.phase("communication_exposed"):
                for channel, names in self._meetings:
                    sum_gradients([_gradient_of(named[name]) for name in names], channel)
        self._rest.finish()

    def pieces(self) -> list[Piece]:
        """This rank's slices; AdamW on DTensors does more work for the same bits."""
        if not self._pieces:
            self._pieces = self._make_pieces() + self._rest.pieces()
        return self._pieces

    def waves(self) -> list[UpdateGroup]:
        """One: the next forward gathers."""
        return [UpdateGroup(self.pieces())]

    @property
    def has_averages(self) -> bool:
        """Slices are never delayed."""
        return True

    def mark_loaded(self) -> None:
        """Memories are all there is."""

    def memories(self) -> list[ReplicaMemory]:
        """What this rank left out of what it sent to each other one."""
        return self._coarse.memories(self._extents)

    def uncompressed_reasons(self) -> dict[str, str]:
        """Parameters whose slices are too small."""
        return self._coarse.uncompressed_reasons()

    def compressible_gradients(self) -> Sequence[CompressedGradients]:
        """Units by group, then what is not sharded."""
        return [*self._coarse.groups, *self._rest.compressible_gradients()]

    def reconfigure(self, config: RunConfig) -> None:
        """What is sent from the next step on, and how far ahead; the slices have no buckets."""
        self._follow_stage(config.parallel.zero_stage)
        self._use(config)
        self._coarse.reconfigure(config)
        self._rest.reconfigure(config)

    def finish_update(self) -> None:
        """Bring new weights into the slices and forget the gradients; the next forward gathers the new values."""
        self._masters.write_back()
        for parameter in self.model.parameters():
            if parameter not in self._whole:
                parameter.grad = None
        self._rest.finish_update()

    def publish_weights(self) -> None:
        """Bring new weights into the slices."""
        self._masters.write_back()
        self._rest.publish_weights()

    def drain(self) -> None:
        """Nothing goes on beside steps but what is not sharded."""
        self._rest.drain()

    def close(self) -> None:
        """What is sharded frees itself."""
        self._rest.close()

    def _follow_stage(self, stage: int) -> None:
        """Between steps blocks are never gathered, so stages 2 and 3 differ only in what the next step keeps."""
        if self._always != (stage == 2):
            self._always = self._kept = stage == 2
            self._sharded.set_reshard_after_forward(not self._always)
            self._sharded.set_reshard_after_backward(True)

    def _use(self, config: RunConfig) -> None:
        """Reductions go on beside backward where nothing is added to what they give before the step ends; on a GPU all
        of them do.
        """
        self._always_reduces = config.parallel.reduce_every_micro_batch
        layers, dtype = (
            config.overlap.prefetch,
            torch.bfloat16 if self.model.narrows(config) else torch.float32,
        )
        is_overlapped = not self._always_reduces and self._copies == 1 and self.model.device.type == "cpu"
        self._reductions.depth = layers if is_overlapped else 0
        prefetch(self.model, layers)
        for unit in self._units:
            unit.use(
                config.compression.weights,
                config.compression.bucket_values,
                dtype,
                config.overlap.fused_gathers,
            )

    def _make_pieces(self) -> list[Piece]:
        pieces = []
        for name, parameter in self.model.model_parameters().items():
            if parameter in self._whole:
                continue
            assert isinstance(parameter, DTensor)
            partial = name in self._partial
            copies = (1 if name in self._experts else self._copies) * (self._tp_size if partial else 1)
            copies *= self._stages.get(name, 1)
            local = _local(parameter).detach()
            weight = self._masters.weight(local, local)
            slices = self._slices[name in self._experts]
            place = self._extents[name].with_start(_first_element(parameter, *slices))
            decayed = parameter.ndim > 1
            pieces.append(Piece(name, weight, _gradient(parameter), decayed, partial, copies, place))
        return pieces


@dataclass(frozen=True)
class Meshes:
    """Where parameters are sharded: [shard] or [replicate, shard], and [edp] for experts, which are spread over
    ``spread`` ranks.
    """

    dense: DeviceMesh
    experts: DeviceMesh | None = None
    spread: int = 1


def _units(model: Stage, meshes: Meshes, options: dict[str, Any], reductions: Reductions) -> Iterator[Unit]:
    """Experts first: a block's unit holds what is left of it. Blocks that share parameters are one."""
    whole: list[nn.Module] = [model]
    names, units = list(model.model_parameters()), list[Unit]()
    for group in model.groups() if meshes.experts is not None else ():
        assert meshes.experts is not None
        of_blocks = [
            [module for module in block.modules() if isinstance(module, ExpertLinear)] for block in group
        ]
        for experts in zip(*of_blocks, strict=True):
            units.append(Unit(experts, meshes.experts, options, meshes.spread, reductions, len(units)))
    for modules in [*model.groups(), whole]:
        units.append(Unit(modules, meshes.dense, options, 1, reductions, len(units)))
    sharded = dict(zip(model.parameters(), names, strict=True))
    for unit in units:
        unit.name(sharded)
        yield unit


def mesh_of(shard: Group | None, replicate: Group | None, ranks: list[list[int]], device: str) -> DeviceMesh:
    """The mesh [shard], or [replicate, shard] with ``ranks`` in that shape; alone, a mesh of one."""
    if shard is None:
        own_group = torch.distributed.new_group(
            [torch.distributed.get_rank()], use_local_synchronization=True
        )
        return DeviceMesh.from_group(own_group, device)
    if replicate is None:
        return DeviceMesh.from_group(shard, device)
    return DeviceMesh.from_group(
        [replicate, shard], device, mesh=torch.tensor(ranks), mesh_dim_names=("replicate", "shard")
    )


def _gradient(parameter: DTensor) -> Callable[[], Tensor]:
    def gradient() -> Tensor:
        of_slice = parameter.grad
        return _local(of_slice) if isinstance(of_slice, DTensor) else torch.zeros_like(_local(parameter))

    return gradient


def _gradient_of(parameter: nn.Parameter) -> Tensor:
    assert isinstance(parameter, DTensor)
    return _gradient(parameter)()


def _slices(mesh: DeviceMesh) -> tuple[int, int]:
    """Ranks that share a parameter, and this one's place. A parameter's own mesh may be one of an earlier run: torch
    takes meshes of the same ranks for one another.
    """
    return mesh.size(mesh.ndim - 1), mesh.get_local_rank(mesh.ndim - 1)


def _first_element(parameter: DTensor, count: int, place: int) -> int:
    """FSDP2 deals rows as ``chunk`` does: every rank gets as many as the first one, the last ones what is left."""
    rows = parameter.shape[0]
    return min(-(-rows // count) * place, rows) * (parameter.numel() // rows)


def _local(tensor: DTensor) -> Tensor:
    with torch.no_grad():
        local: Tensor = tensor.to_local()
    return local
