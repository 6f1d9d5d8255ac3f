"""Schedules with whole backwards: GPipe, 1F1B, interleaved 1F1B, breadth-first and layered accumulation.

GPipe (arXiv 1811.06965): all forwards, then all backwards. 1F1B (PipeDream-flush, arXiv 2006.09503): a backward as
soon as one can run. Interleaved 1F1B (arXiv 2104.04473): several chunks on each rank, visited in rounds.

Breadth-first (arXiv 2211.05953): a chunk takes all micro-batches before the next chunk starts. All uses of a chunk's
parameters lie side by side, so sharded parameters are gathered once for the forwards and once for the backwards, and
a chunk's gradient can travel while the chunks below it compute.

Layered gradient accumulation with modular placement (arXiv 2106.02679): layers are dealt to the ranks like cards, and
a layer takes all micro-batches before the next one starts. On one rank this is plain gradient accumulation with its
two loops swapped. A layer's gradient is complete as soon as its last micro-batch is done, so its reduction overlaps
the backwards of all layers below it.
"""

from __future__ import annotations

from itertools import pairwise

from engine.schedules.actions import Action, Size, backward, forward


def gpipe(rank: int, size: Size) -> list[Action]:
    """Actions of one rank with one stage; keeps all micro-batches' activations in flight."""
    forwards = [forward(m, rank) for m in range(size.micro_batches)]
    return forwards + [backward(m, rank) for m in range(size.micro_batches)]


def one_f_one_b(rank: int, size: Size) -> list[Action]:
    """Actions of one rank with one stage; keeps at most ``ranks - rank`` activations in flight."""
    forwards = [forward(m, rank) for m in range(size.micro_batches)]
    backwards = [backward(m, rank) for m in range(size.micro_batches)]
    return alternate(forwards, backwards, warm_up=size.ranks - rank - 1)


def alternate(forwards: list[Action], backwards: list[Action], warm_up: int) -> list[Action]:
    """Some forwards alone, then one forward and one backward in turn, then the backwards that are left."""
    actions = forwards[:warm_up]
    for pair in zip(forwards[warm_up:], backwards, strict=False):
        actions += pair
    return actions + backwards[len(forwards[warm_up:]) :]


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


def breadth_first(rank: int, size: Size) -> list[Action]:
    """Actions of one rank; keeps all micro-batches of all its chunks in flight.

    Backwards take the last micro-batch first: its activations are the warmest.
    """
    stages = range(rank, size.stages, size.ranks)
    micro_batches = range(size.micro_batches)
    forwards = [forward(m, stage) for stage in stages for m in micro_batches]
    return forwards + [backward(m, stage) for stage in stages[::-1] for m in micro_batches[::-1]]


def layered(rank: int, size: Size) -> list[Action]:
    """Actions of one rank, chunk by chunk; keeps all micro-batches of all its chunks in flight.

    Both passes take micro-batches in the same order, so gradients add up in the order of plain accumulation.
    """
    stages = range(rank, size.stages, size.ranks)
    micro_batches = range(size.micro_batches)
    forwards = [forward(m, stage) for stage in stages for m in micro_batches]
    return forwards + [backward(m, stage) for stage in stages[::-1] for m in micro_batches]
