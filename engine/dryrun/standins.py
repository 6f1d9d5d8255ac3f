"""What takes the place of parts that need real numbers, where only sizes are there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import FSDPModule

from engine.dryrun.storages import Noted, identity
from engine.memory.offload import SMALLEST_BYTES, Offload, is_weight
from engine.workloads.decoder import Decoder
from engine.workloads.experts import Compute, ExpertAxis
from engine.workloads.mixture import Mixture


def put_in(decoder: Decoder) -> None:
    """Give a stage its stand-ins; call it before the first forward."""
    for module in decoder.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(Unsent())  # type: ignore[arg-type]
        if isinstance(module, Mixture):
            module.axis = EvenExperts(module.axis)


class Unsent:
    """An all-gather that sends nothing: one to a thousand ranks that are not there would still copy for each."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The message's memory."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, *_: Any, **__: Any) -> None:
        """Nothing."""


class EvenExperts:
    """An expert axis whose tokens fall evenly on all experts: how many do in truth, only a router knows."""

    def __init__(self, axis: ExpertAxis) -> None:
        self._axis, self.size, self.rank = axis, axis.size, axis.rank

    def run_sorted(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        """As the axis says, with a few rows more where they do not divide evenly."""
        experts = counts.shape[0]
        padded = F.pad(rows, (0, 0, 0, -rows.shape[0] % experts)) if rows.shape[0] % experts else rows
        results = self._axis.run_padded(padded.unflatten(0, (experts, -1)), compute)
        return results.flatten(0, 1)[: rows.shape[0]]

    def run_padded(self, slots: Tensor, compute: Compute) -> Tensor:
        """As the axis says."""
        return self._axis.run_padded(slots, compute)


class CountedOffload(Offload):
    """Lets go of what would leave for the host, and counts it; ``largest_block_bytes`` is one block's share."""

    def __init__(self) -> None:
        super().__init__()
        self.largest_block_bytes = 0

    def run(self, blocks: Iterable[nn.Module], x: Tensor, resident: Tensor) -> Tensor:
        """As the offload does, without a way back."""
        self.host_bytes = self.largest_block_bytes = 0
        leaving = list(blocks)
        staying = leaving[-1:] if self.turns_at_once else []
        for block in leaving[: len(leaving) - len(staying)]:
            gone = Noted()
            with saved_tensors_hooks(_leaves(gone, identity(resident)), _comes_back):
                x = block(x, resident)
            taken = gone.total_bytes()
            self.host_bytes += taken
            self.largest_block_bytes = max(self.largest_block_bytes, taken)
        for block in staying:
            x = block(x, resident)
        return x


def _leaves(gone: Noted, resident: int) -> Any:
    def pack(tensor: Tensor) -> Tensor | None:
        is_small = tensor.untyped_storage().nbytes() < SMALLEST_BYTES
        if is_small or identity(tensor) == resident or is_weight(tensor):
            return tensor
        gone.note(tensor)
        return None

    return pack


def _comes_back(_: object) -> Tensor:
    raise AssertionError("a dry run has no backward behind an offload")
