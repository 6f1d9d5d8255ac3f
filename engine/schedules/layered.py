"""Layered gradient accumulation with modular placement (arXiv 2106.02679).

Layers are dealt to the ranks like cards, and a layer takes all micro-batches before the next one starts. On one
rank this is plain gradient accumulation with its two loops swapped. A layer's gradient is complete as soon as its
last micro-batch is done, so its reduction overlaps the backwards of all layers below it.
"""

from __future__ import annotations

from engine.schedules.actions import Action, Size, backward, forward


def layered(rank: int, size: Size) -> list[Action]:
    """Actions of one rank, chunk by chunk; keeps all micro-batches of all its chunks in flight.

    Both passes take micro-batches in the same order, so gradients add up in the order of plain accumulation.
    """
    stages = range(rank, size.stages, size.ranks)
    micro_batches = range(size.micro_batches)
    forwards = [forward(m, stage) for stage in stages for m in micro_batches]
    return forwards + [backward(m, stage) for stage in stages[::-1] for m in micro_batches]
