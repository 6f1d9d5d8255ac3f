"""ZeRO-3 by FSDP2: each rank keeps a slice of every parameter and gathers a block when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from engine.channel import Channel, Group, all_gather_single, reduce_scatter_single
from engine.parallel.replica import run_backward
from engine.workloads.decoder import Decoder


class FullyShardedReplica:
    """A stage whose parameters, gradients and optimizer state are split over dp.

    Sent per micro-batch: an all-gather of each block in forward and in backward; per step a reduce-scatter of
    each block's gradients (arXiv 1910.02054, stage 3).
    """

    def __init__(self, decoder: Decoder, group: Group | None, bf16: bool) -> None:
        device = next(decoder.parameters()).device.type
        mesh = _mesh(group, device)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        options = {"mesh": mesh} | ({"mp_policy": policy} if bf16 else {})
        for block in decoder.blocks.values():
            fully_shard(block, **options)  # type: ignore[call-overload]
        fully_shard(decoder, **options)  # type: ignore[call-overload]
        assert isinstance(decoder, FSDPModule)
        channel = Channel(mesh.get_group(), next(decoder.parameters()).device)
        for sharded in (decoder, *decoder.blocks.values()):
            assert isinstance(sharded, FSDPModule)
            sharded.set_custom_all_gather(_AllGather(channel))  # type: ignore[arg-type]
            sharded.set_custom_reduce_scatter(_ReduceScatter(channel))  # type: ignore[arg-type]
        self.decoder: Decoder = decoder
        self._sharded: FSDPModule = decoder

    def forward(self, x: Tensor) -> Tensor:
        """The stage's output."""
        out: Tensor = self.decoder(x)
        return out

    def backward(self, output: Tensor, gradient: Tensor | None, last: bool) -> None:
        """Backward; gradients stay local until the last micro-batch, then they are scattered."""
        self._sharded.set_is_last_backward(last)
        self._sharded.set_requires_gradient_sync(last)
        run_backward(output, gradient)

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Sharded parameters (DTensors) by the names of the undivided model."""
        return list(self.decoder.named_parameters())


class _Communication:
    """What FSDP2 calls in place of ``torch.distributed``; one that is not waited for at once stays torch's."""

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
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Group, op: Any, async_op: bool = False
    ) -> Any:
        if async_op:
            return reduce_scatter_single(output_tensor, input_tensor, op=op, group=group, async_op=True)
        return self._channel.reduce_scatter_into(output_tensor, input_tensor, op)


def _mesh(group: Group | None, device: str) -> DeviceMesh:
    if group is None:
        own = torch.distributed.new_group([torch.distributed.get_rank()], use_local_synchronization=True)
        return DeviceMesh.from_group(own, device)
    return DeviceMesh.from_group(group, device)
