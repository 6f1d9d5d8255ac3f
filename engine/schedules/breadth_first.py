"""Breadth-first pipeline (arXiv 2211.05953): a chunk takes all micro-batches before the next chunk starts.

All uses of a chunk's parameters lie side by side, so sharded parameters are gathered once for the forwards and
once for the backwards, and a chunk's gradient can travel while the chunks below it compute.
"""

from __future__ import annotations

from engine.schedules.actions import Action, Size, backward, forward


def breadth_first(rank: int, size: Size) -> list[Action]:
    """Actions of one rank; keeps all micro-batches of all its chunks in flight.

    Backwards take the last micro-batch first: its activations are the warmest.
    """
    stages = range(rank, size.stages, size.ranks)
    micro_batches = range(size.micro_batches)
    forwards = [forward(m, stage) for stage in stages for m in micro_batches]
    return forwards + [backward(m, stage) for stage in stages[::-1] for m in micro_batches[::-1]]
