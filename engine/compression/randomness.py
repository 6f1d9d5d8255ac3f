"""Random numbers that are the same when a step is run again, without state in a checkpoint; and long tensors in
blocks.

Blocks stay in a processor's cache while several operations pass over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

_SHARED = 0
_FIXED_SEED = 2210_17357


class RandomStreams:
    """Generators that are made afresh for each step and bucket, seeded from ``train.seed``; ``step`` tells the running
    step.
    """

    def __init__(self, seed: int, rank: int, step: Callable[[], int], device: torch.device) -> None:
        self._seed, self._rank, self._step, self._device = seed, rank, step, device

    def rank_generator(self, index: int, use: int = 0) -> torch.Generator:
        """A generator that differs between ranks; ``use`` tells several of a step apart."""
        return self._generator(index, use, 1 + self._rank)

    def shared(self, index: int) -> torch.Generator:
        """A generator that all ranks of the group have alike."""
        return self._generator(index, 0, _SHARED)

    def once(self, key: int) -> torch.Generator:
        """A generator that all ranks have alike at all steps."""
        return self._make_generator(key)

    def _generator(self, index: int, use: int, rank: int) -> torch.Generator:
        return self._make_generator(rank, index, use, max(self._step(), 0))

    def _make_generator(self, *numbers: int) -> torch.Generator:
        words = np.random.SeedSequence([self._seed, *numbers]).generate_state(2, np.uint32)
        return torch.Generator(self._device).manual_seed(int(words[0]) << 32 | int(words[1]))


#: fp32 values: 256 KiB, a part of the second-level cache of a usual core.
BLOCK_VALUES = 1 << 16


def ranges_of(values: Tensor, length: int = BLOCK_VALUES) -> Iterator[tuple[int, int]]:
    """[start, stop) of one block after the other; on a GPU, whose calls cost more than its memory, one for all."""
    count = len(values)
    for start in range(0, count, length if values.device.type == "cpu" else max(count, 1)):
        yield start, min(start + length, count) if values.device.type == "cpu" else count


def sum_of_squares(values: Tensor) -> Tensor:
    """Of fp32 [n], in fp64 []."""
    blocks = [values[start:stop].double().square().sum() for start, stop in ranges_of(values)]
    return torch.stack(blocks).sum()


def fixed_generator(like: Tensor) -> torch.Generator:
    """On the device of ``like``: the same numbers for every tensor and rank."""
    return torch.Generator(like.device).manual_seed(_FIXED_SEED)
