"""ZeRO-3 by FSDP2: each rank keeps a slice of every parameter and gathers a block when it is needed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from engine.groups import Group
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


def _mesh(group: Group | None, device: str) -> DeviceMesh:
    if group is None:
        own = torch.distributed.new_group([torch.distributed.get_rank()], use_local_synchronization=True)
        return DeviceMesh.from_group(own, device)
    return DeviceMesh.from_group(group, device)
