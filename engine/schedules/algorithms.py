"""The schedules: what a rank does, the seconds that it waits in a step, and the activations that it keeps.

GPipe (arXiv 1811.06965): all forwards, then all backwards. 1F1B (PipeDream-flush, arXiv 2006.09503): a backward as
soon as one can run. Interleaved 1F1B (arXiv 2104.04473): several chunks on each rank, visited in rounds.

Breadth-first (arXiv 2211.05953): a chunk takes all micro-batches before the next chunk starts. All uses of a chunk's
parameters lie side by side, so sharded parameters are gathered once for the forwards and once for the backwards, and
a chunk's gradient can travel while the chunks below it compute.

Layered gradient accumulation with modular placement (arXiv 2106.02679): layers are dealt to the ranks like cards, and
a layer takes all micro-batches before the next one starts. On one rank this is plain gradient accumulation with its
two loops swapped. A layer's gradient is complete as soon as its last micro-batch is done, so its reduction overlaps
the backwards of all layers below it.

ZB-H1 (arXiv 2401.10241) is 1F1B whose weight gradients fill gaps. ZB-V (a V-shape of arXiv 2405.15362) has two chunks a
rank, placed as a V: micro-batches go down through the ranks and come up again, so the last stage, and the first
backward, is on rank 0. With equal costs of F, I and W a rank that has started never waits, at the memory of 1F1B.

In the closed forms sizes are p ranks, v chunks (stages per rank) and m micro-batches; a message between ranks
takes ``costs.hop`` seconds (h). All hold for any m >= 1, and equal the simulation or the count of the lists.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from engine.schedules.actions import (
    Action,
    Costs,
    Size,
    Work,
    backward,
    forward,
    gradient_of_input,
    gradient_of_weights,
)


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


def zero_bubble(rank: int, size: Size) -> list[Action]:
    """Actions of one rank with one stage; keeps at most ``ranks`` activations in flight, as 1F1B's first rank.

    The weight gradients of rank r wait for r further micro-batches: the gradient of the input goes on to
    the rank before without them, and they fill the end of the step.
    """
    forwards = [forward(m, rank) for m in range(size.micro_batches)]
    inputs = [gradient_of_input(m, rank) for m in range(size.micro_batches)]
    actions = []
    for action in alternate(forwards, inputs, warm_up=size.ranks - rank - 1):
        actions.append(action)
        if action.work is Work.INPUT and action.micro_batch >= rank:
            actions.append(gradient_of_weights(action.micro_batch - rank, rank))
    waiting = range(max(0, size.micro_batches - rank), size.micro_batches)
    return actions + [gradient_of_weights(m, rank) for m in waiting]


def zero_bubble_v(rank: int, size: Size) -> list[Action]:
    """Actions of one rank; keeps at most ``2 * ranks`` activations of (half-sized) chunks in flight.

    The list is a word over six kinds of work; the k-th use of a kind is for micro-batch k. Fewer micro-batches
    than the word needs lose the ones that do not exist: what is left keeps its order.
    """
    count = Counter[tuple[Work, int]]()
    actions = []
    for kind in _word(rank, size.ranks, max(size.micro_batches, 2 * size.ranks - 1)):
        actions.append(Action(kind[0], count[kind], kind[1]))
        count[kind] += 1
    return [action for action in actions if action.micro_batch < size.micro_batches]


def _word(rank: int, ranks: int, micro_batches: int) -> list[tuple[Work, int]]:
    """(work, stage) in order: the stage on the way down and the one on the way up, ``below`` ranks from the turn."""
    down, up = rank, 2 * ranks - 1 - rank
    below = ranks - rank
    forward_down, input_down, weight_down = [(work, down) for work in (Work.FORWARD, Work.INPUT, Work.WEIGHT)]
    forward_up, input_up, weight_up = [(work, up) for work in (Work.FORWARD, Work.INPUT, Work.WEIGHT)]
    all_up, backward_down = [forward_up, input_up, weight_up], [input_down, weight_down]
    steady = micro_batches - 2 * ranks + rank + 1
    return (
        [forward_down] * (2 * below - 1)
        + [forward_up, forward_down] * rank
        + all_up * below
        + [forward_down, *backward_down, *all_up] * steady
        + [*backward_down, *all_up] * (below - 1)
        + [input_down, input_up] * rank
        + backward_down * below
        + [weight_up] * rank
        + [weight_down] * rank
    )


class NoFormError(ValueError):
    """No closed form is known for these costs; simulate the plan instead."""


def idle_chunk_by_chunk(size: Size, costs: Costs) -> float:
    """(p - 1)(f + b + 2h), and between chunks max(m x, p (x + h)) - m x for x = f and x = b.

    GPipe has one chunk (arXiv 1811.06965). A loop takes a micro-batch p (x + h) seconds to come
    round: without hops nothing stalls from m >= p on (arXiv 2106.02679, 2211.05953; derived here).
    """
    p, v, m = size
    idle = (p - 1) * (costs.forward + costs.backward + 2 * costs.hop)
    for x in (costs.forward, costs.backward):
        idle += (v - 1) * (max(m * x, p * (x + costs.hop)) - m * x)
    return idle


def idle_one_f_one_b(size: Size, costs: Costs) -> float:
    """(p - 1)(f + b) (arXiv 2104.04473), and the hops on the way.

    Messages go from the first rank to the last and back for the first micro-batch, and again for each further
    group of p, since 1F1B waits for its own backwards (arXiv 2405.18093 counts m / p such round trips); a
    last group of n < p starts lower and costs n - 1 hops each way. Exact in this form; derived here.
    """
    p, _, m = size
    groups, remainder = divmod(m - 1, p)
    hops = 2 * (p - 1) * (1 + groups) + 2 * max(remainder - 1, 0)
    return (p - 1) * (costs.forward + costs.backward) + hops * costs.hop


def _without_hops(name: str, costs: Costs) -> None:
    if costs.hop:
        raise NoFormError(f"{name}: no closed form with a hop of {costs.hop} s; simulate the plan")


def idle_interleaved(size: Size, costs: Costs) -> float:
    """(p - 1)(f + b) for stages 1 / v as long (arXiv 2104.04473); m < p stalls each further chunk
    by p - m.
    """
    if size.chunks == 1:
        return idle_one_f_one_b(size, costs)
    _without_hops("interleaved", costs)
    p, v, m = size
    return (p - 1 + (v - 1) * max(p - m, 0)) * (costs.forward + costs.backward)


def idle_zero_bubble(size: Size, costs: Costs) -> float:
    """(p - 1)(f + i - w) (arXiv 2401.10241) for m >= p and w <= f, w <= i.

    A longer w fills no more than the shorter of f and i; m < p has m - 1 gaps to fill instead of p - 1.
    """
    _without_hops("zb_h1", costs)
    p, _, m = size
    filled = (min(m, p) - 1) * min(costs.weight, costs.forward, costs.input)
    return (p - 1) * (costs.forward + costs.input) - filled


def idle_zero_bubble_v(size: Size, costs: Costs) -> float:
    """(p - 1) f: ranks start one after the other and then never wait (arXiv 2401.10241).

    Needs f = i = w. Fewer than (3p - 1) / 2 micro-batches leave 4 (p - 1) - 2 (m - 1) gaps instead.
    """
    _without_hops("zb_v", costs)
    if not costs.forward == costs.input == costs.weight:
        raise NoFormError("zb_v: a closed form needs forward = input = weight; simulate the plan")
    p, _, m = size
    return max(p - 1, 4 * (p - 1) - 2 * (m - 1)) * costs.forward


def peak_one_f_one_b(rank: int, size: Size) -> int:
    """min(p - r, m) (arXiv 2006.09503)."""
    return min(size.ranks - rank, size.micro_batches)


def peak_interleaved(rank: int, size: Size) -> int:
    """(v - 1) g + 2 (p - r) - 1, at most v m, with rounds of g micro-batches (g = p if p divides m).

    Source: arXiv 2205.05198.
    """
    p, v, m = size
    if v == 1:
        return peak_one_f_one_b(rank, size)
    return min((v - 1) * len(rounds(size)[0]) + 2 * (p - rank) - 1, v * m)


def peak_zero_bubble(rank: int, size: Size) -> int:
    """min(p, m) (arXiv 2401.10241)."""
    return min(size.ranks, size.micro_batches)


def peak_zero_bubble_v(rank: int, size: Size) -> int:
    """2p of half the size (arXiv 2401.10241); for small m, min(m, 2p - 1 - r) + min(m, r + 1)."""
    p, _, m = size
    return min(m, 2 * p - 1 - rank) + min(m, rank + 1)


def peak_all(rank: int, size: Size) -> int:
    """v m: all of them (GPipe, arXiv 1811.06965; layered, arXiv 2106.02679)."""
    return size.chunks * size.micro_batches
