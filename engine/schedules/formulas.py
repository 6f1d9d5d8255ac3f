"""Closed forms of single schedules: seconds that a rank waits in a step, and activations that it keeps. Pure.

Sizes are p ranks, v chunks (stages per rank) and m micro-batches; a message between ranks takes ``costs.hop`` seconds
(h). All forms hold for any m >= 1, and equal the simulation or the count of the lists.
"""

from __future__ import annotations

from engine.schedules.actions import Costs, Size
from engine.schedules.classic import rounds


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
    groups, rest = divmod(m - 1, p)
    hops = 2 * (p - 1) * (1 + groups) + 2 * max(rest - 1, 0)
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
