"""Gradients sent in half precision."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from engine.channel import Group
from engine.compression.compressor import Future, then


class Fp16:
    """All-reduce in fp16; divided before the sum so that it cannot overflow earlier than one value would."""

    def __init__(self, group: Group) -> None:
        self._group, self._size = group, group.size()

    def reduce(self, bucket: int, flat: Tensor) -> Future:
        """Average through an fp16 copy."""
        half = flat.div_(self._size).to(torch.float16)
        work = dist.all_reduce(half, group=self._group, async_op=True)
        return then(work, lambda: flat.copy_(half))

    def payload_bytes(self, elements: int) -> int:
        """Two bytes a value."""
        return 2 * elements

    def memory(self, bucket: int, flat: Tensor) -> None:
        """Nothing is left for later."""
