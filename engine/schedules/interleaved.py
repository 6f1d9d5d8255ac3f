"""Interleaved 1F1B (arXiv 2104.04473): several chunks on each rank, visited in rounds."""

from __future__ import annotations

from itertools import pairwise

from engine.schedules.actions import Action, Size, backward, forward
from engine.schedules.one_f_one_b import alternate, one_f_one_b


def interleaved(rank: int, size: Size) -> list[Action]:
    """Actions of one rank: a round of micro-batches goes through a chunk before the next chunk takes them.

    The paper's rounds are of ``ranks`` micro-batches, which must divide the step; see :func:`rounds` for
    other numbers. One chunk is 1F1B.
    """
    if size.chunks == 1:
        return one_f_one_b(rank, size)
    stages = range(rank, size.stages, size.ranks)
    forwards = [forward(m, stage) for turn in rounds(size) for stage in stages for m in turn]
    backwards = [backward(m, stage) for turn in rounds(size) for stage in stages[::-1] for m in turn]
    warm_up = (size.chunks - 1) * len(rounds(size)[0]) + 2 * (size.ranks - rank - 1)
    return alternate(forwards, backwards, warm_up)


def rounds(size: Size) -> list[range]:
    """The micro-batches in as many rounds of at least ``ranks`` as there can be, as equal as they can be.

    A round shorter than ``ranks`` would stall every chunk, a longer one only keeps more in flight. If there are
    fewer micro-batches than ranks, they are one round.
    """
    count = max(1, size.micro_batches // size.ranks)
    least, longer = divmod(size.micro_batches, count)
    starts = [turn * least + min(turn, longer) for turn in range(count + 1)]
    return [range(first, end) for first, end in pairwise(starts)]
