"""ZeRO stages 2 and 3 and hybrid sharding by FSDP2: each rank keeps a slice of every parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from engine.channel import Channel, Group, all_gather_single
from engine.config import RunConfig
from engine.memory.masters import Masters
from engine.parallel.data import DataParallel
from engine.parallel.replica import Memory, Piece, extent, is_expert, partial_over_tp
from engine.workloads.decoder import Decoder
from engine.workloads.mixture import ExpertLinear


class FullyShardedReplica:
    """A stage whose parameters, gradients and optimizer state are split over data ranks (arXiv 1910.02054).

    Sent per step: a reduce-scatter of each block's gradients, and all-gathers of each block: in stage 3 for every
    forward and every backward, in stage 2 once, since gathered blocks are kept until the last backward. A hybrid
    mesh [replicate, shard] splits over ``shard`` and all-reduces the slices over ``replicate``.

    With precision bf16 the slices stay fp32 and what is gathered is bf16; gradients are summed over micro-batches and
    ranks in fp32. That is all that ``memory.parameters`` = bf16 asks for, so here it changes nothing. Parameters that
    compute in fp32 then are not sharded but in ``rest``, and a message of their own averages their gradients.

    With ``parallel.reduce_every_micro_batch`` gradients are scattered after every backward, not summed as a whole
    until the last: m times the bytes for slices in place of whole gradients. Replicas are still summed over once.
    """

    def __init__(
        self, decoder: Decoder, rest: DataParallel, meshes: Meshes, config: RunConfig, tp_size: int
    ) -> None:
        self._rest, self._always_reduces = rest, config.parallel.reduce_every_micro_batch
        self._whole = {parameter for part in rest.parts for parameter in part.shared.named.values()}
        self._always = self._kept = config.parallel.zero_stage == 2
        self._tp_size, self._pieces = tp_size, list[Piece]()
        self._masters = Masters(config.memory)
        # Sharding makes other parameters of them.
        self._partial = {name for name, one in decoder.named_parameters() if partial_over_tp(one)}
        self._experts = {name for name, one in decoder.named_parameters() if is_expert(one)}
        self._extents = {name: extent(one) for name, one in decoder.named_parameters()}
        self._slices = {False: _slices(meshes.dense), True: _slices(meshes.experts or meshes.dense)}
        self._copies = meshes.dense.size(0) if meshes.dense.ndim == 2 else 1
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        options: dict[str, Any] = {"reshard_after_forward": not self._always, "ignored_params": self._whole}
        options |= {"mp_policy": policy} if config.precision == "bf16" else {}
        if meshes.experts is not None:
            for module in decoder.modules():
                if isinstance(module, ExpertLinear):
                    _shard(module, meshes.experts, options, meshes.spread)
        for module in (*decoder.blocks.values(), decoder):
            _shard(module, meshes.dense, options)
        assert isinstance(decoder, FSDPModule)
        self.decoder: Decoder = decoder
        self._sharded: FSDPModule = decoder

    def forward(self, x: Tensor) -> Tensor:
        """The stage's output."""
        out: Tensor = self.decoder(x)
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
        """The last backward has waited for its own reductions."""
        self._rest.finish()

    def pieces(self) -> list[Piece]:
        """This rank's slices; AdamW on DTensors costs several times as much, and gives the same bits."""
        if not self._pieces:
            self._pieces = self._cut() + self._rest.pieces()
        return self._pieces

    def memories(self) -> list[Memory]:
        """Sharded gradients are not compressed."""
        return []

    def left_alone(self) -> dict[str, str]:
        """None: no method is chosen for them."""
        return {}

    def turn(self, config: RunConfig) -> None:
        """Those that are not sharded; the slices have no buckets."""
        self._rest.turn(config)

    def updated(self) -> None:
        """Bring new weights into the slices and forget the gradients; the next forward gathers the new values."""
        self._masters.write_back()
        for parameter in self.decoder.parameters():
            if parameter not in self._whole:
                parameter.grad = None
        self._rest.updated()

    def _cut(self) -> list[Piece]:
        pieces = []
        for name, parameter in self.decoder.named_parameters():
            if parameter in self._whole:
                continue
            assert isinstance(parameter, DTensor)
            partial = name in self._partial
            copies = (1 if name in self._experts else self._copies) * (self._tp_size if partial else 1)
            local = _local(parameter).detach()
            weight = self._masters.weight(local, local)
            slices = self._slices[name in self._experts]
            place = self._extents[name].beginning_at(_first_element(parameter, *slices))
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


def _shard(module: nn.Module, mesh: DeviceMesh, options: dict[str, Any], spread: int = 1) -> None:
    channel = Channel(mesh.get_group(mesh.ndim - 1), torch.device(mesh.device_type))
    sharded = fully_shard(module, mesh=mesh, **options)
    sharded.set_custom_all_gather(_AllGather(channel))  # type: ignore[arg-type]
    sharded.set_custom_reduce_scatter(_ReduceScatter(channel, spread))  # type: ignore[arg-type]
    if mesh.size() == 1 and spread > 1:  # then nothing is scattered, and FSDP2 divides by itself
        sharded.set_gradient_divide_factor(spread)


def mesh_of(shard: Group | None, replicate: Group | None, ranks: list[list[int]], device: str) -> DeviceMesh:
    """The mesh [shard], or [replicate, shard] with ``ranks`` in that shape; alone, a mesh of one."""
    if shard is None:
        own = torch.distributed.new_group([torch.distributed.get_rank()], use_local_synchronization=True)
        return DeviceMesh.from_group(own, device)
    if replicate is None:
        return DeviceMesh.from_group(shard, device)
    return DeviceMesh.from_group(
        [replicate, shard], device, mesh=torch.tensor(ranks), mesh_dim_names=("replicate", "shard")
    )


def _gradient(parameter: DTensor) -> Callable[[], Tensor]:
    def gradient() -> Tensor:
        found = parameter.grad
        return _local(found) if isinstance(found, DTensor) else torch.zeros_like(_local(parameter))

    return gradient


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


class _Communication:
    """What FSDP2 calls in place of ``torch.distributed``; a gather that is waited for later stays torch's."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Communication):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Group, async_op: bool = False
    ) -> Any:
        if async_op:
            return all_gather_single(output_tensor, input_tensor, group=group, async_op=True)
        return self._channel.all_gather_into(output_tensor, input_tensor)


class _ReduceScatter(_Communication):
    """Averages over its ranks, and over ``spread`` times as many where the rest hold other experts.

    FSDP2's own factor for that needs an operation that gloo lacks.
    """

    def __init__(self, channel: Channel, spread: int) -> None:
        super().__init__(channel)
        self._spread = spread

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Group, op: Any, async_op: bool = False
    ) -> Any:
        if self._spread > 1:
            input_tensor.div_(self._spread)
        if async_op:
            return self._channel.start_reduce_scatter_into(output_tensor, input_tensor, op)
        return self._channel.reduce_scatter_into(output_tensor, input_tensor, op)
