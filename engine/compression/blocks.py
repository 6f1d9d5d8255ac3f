"""Long tensors in blocks that stay in a processor's cache while several operations pass over them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

#: fp32 values: 256 KiB, a part of the second-level cache of a usual core.
BLOCK_VALUES = 1 << 16


def ranges_of(values: Tensor, length: int = BLOCK_VALUES) -> Iterator[tuple[int, int]]:
    """[start, stop) of one block after the other; on a GPU, whose calls cost more than its memory, one for all."""
    count = len(values)
    for start in range(0, count, length if values.device.type == "cpu" else max(count, 1)):
        yield start, min(start + length, count) if values.device.type == "cpu" else count
