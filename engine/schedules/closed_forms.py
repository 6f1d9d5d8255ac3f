"""What a schedule costs, by formula: bubble, activations in flight, messages, gathers of sharded parameters.

Sizes are p ranks, v chunks (stages per rank) and m micro-batches; f, b, i and w are the seconds of a forward, a whole
backward and its two parts on one stage. Every formula equals the count or the simulation of the lists. ``expected``
is the bubble with measured costs, to compare with the measured one.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.schedules.actions import Costs, Size
from engine.schedules.classic import rounds
from engine.schedules.registry import KINDS

CHUNK_BY_CHUNK = ("breadth_first", "layered")


class Sent(NamedTuple):
    """Messages that one rank sends in a step: activations to the next stage, gradients to the one before."""

    activations: int
    gradients: int


class Collectives(NamedTuple):
    """Collectives of one chunk's sharded parameters in a step: gathers of them, reductions of gradients."""

    gathers: int
    reductions: int


def busy_seconds(kind: str, chunks: int, micro_batches: int, costs: Costs) -> float:
    """Seconds that every rank computes in a step: v m (f + b), or v m (f + i + w) with a split backward."""
    splits = KINDS[kind].splits_backward
    backward = costs.input + costs.weight if splits else costs.backward
    return chunks * micro_batches * (costs.forward + backward)


def bubble_fraction(kind: str, ranks: int, chunks: int, micro_batches: int, costs: Costs) -> float:
    """Share of the step in which a rank does nothing: idle / (idle + busy), see :func:`idle_seconds`.

    Papers often give idle / busy instead, such as (p - 1) / (v m) in arXiv 2104.04473.
    """
    idle = idle_seconds(kind, ranks, chunks, micro_batches, costs)
    return idle / (idle + busy_seconds(kind, chunks, micro_batches, costs))


def idle_seconds(kind: str, ranks: int, chunks: int, micro_batches: int, costs: Costs) -> float:
    """Seconds that every rank waits in a step, from the first action of any rank to the last.

    A message between ranks takes ``costs.hop`` seconds (h). All forms hold for any m >= 1.

    Raises:
        ValueError: no closed form is known for these costs; simulate the plan instead.
    """
    size = Size(ranks, chunks, micro_batches)
    if ranks == 1:
        return 0.0
    if kind in ("gpipe", *CHUNK_BY_CHUNK):
        return _chunk_by_chunk(size, costs)
    if kind == "1f1b" or (kind == "interleaved" and chunks == 1):
        return _one_f_one_b(size, costs)
    if costs.hop:
        raise ValueError(f"{kind}: no closed form with a hop of {costs.hop} s; simulate the plan")
    forms = {"interleaved": _interleaved, "zb_h1": _zero_bubble, "zb_v": _zero_bubble_v}
    return forms[kind](size, costs)


def _chunk_by_chunk(size: Size, costs: Costs) -> float:
    """(p - 1)(f + b + 2h), and between chunks max(m x, p (x + h)) - m x for x = f and x = b.

    GPipe has one chunk (arXiv 1811.06965). A loop takes a micro-batch p (x + h) seconds to come
    round: without hops nothing stalls from m >= p on (arXiv 2106.02679, 2211.05953; derived here).
    """
    p, v, m = size
    idle = (p - 1) * (costs.forward + costs.backward + 2 * costs.hop)
    for x in (costs.forward, costs.backward):
        idle += (v - 1) * (max(m * x, p * (x + costs.hop)) - m * x)
    return idle


def _one_f_one_b(size: Size, costs: Costs) -> float:
    """(p - 1)(f + b) (arXiv 2104.04473), and the hops on the way.

    Messages go from the first rank to the last and back for the first micro-batch, and again for each further
    group of p, since 1F1B waits for its own backwards (arXiv 2405.18093 counts m / p such round trips); a
    last group of n < p starts lower and costs n - 1 hops each way. Exact in this form; derived here.
    """
    p, _, m = size
    groups, rest = divmod(m - 1, p)
    hops = 2 * (p - 1) * (1 + groups) + 2 * max(rest - 1, 0)
    return (p - 1) * (costs.forward + costs.backward) + hops * costs.hop


def _interleaved(size: Size, costs: Costs) -> float:
    """(p - 1)(f + b) for stages 1 / v as long (arXiv 2104.04473); m < p stalls each further chunk
    by p - m.
    """
    p, v, m = size
    return (p - 1 + (v - 1) * max(p - m, 0)) * (costs.forward + costs.backward)


def _zero_bubble(size: Size, costs: Costs) -> float:
    """(p - 1)(f + i - w) (arXiv 2401.10241) for m >= p and w <= f, w <= i.

    A longer w fills no more than the shorter of f and i; m < p has m - 1 gaps to fill instead of p - 1.
    """
    p, _, m = size
    filled = (min(m, p) - 1) * min(costs.weight, costs.forward, costs.input)
    return (p - 1) * (costs.forward + costs.input) - filled


def _zero_bubble_v(size: Size, costs: Costs) -> float:
    """(p - 1) f: ranks start one after the other and then never wait (arXiv 2401.10241).

    Needs f = i = w. Fewer than (3p - 1) / 2 micro-batches leave 4 (p - 1) - 2 (m - 1) gaps instead.
    """
    if not costs.forward == costs.input == costs.weight:
        raise ValueError("zb_v: a closed form needs forward = input = weight; simulate the plan")
    p, _, m = size
    return max(p - 1, 4 * (p - 1) - 2 * (m - 1)) * costs.forward


def in_flight(kind: str, ranks: int, chunks: int, micro_batches: int) -> tuple[int, ...]:
    """Peak number of activations on each rank r, in chunks x micro-batches, kept from F to the end of B or W.

    - one stage: 1
    - gpipe (arXiv 1811.06965), breadth_first, layered (arXiv 2106.02679): v m
    - 1f1b (arXiv 2006.09503): min(p - r, m)
    - interleaved (arXiv 2205.05198): (v - 1) g + 2 (p - r) - 1, at most v m, with rounds of
      g micro-batches (g = p if p divides m)
    - zb_h1 (arXiv 2401.10241): min(p, m)
    - zb_v (arXiv 2401.10241): 2p of half the size; for small m, min(m, 2p - 1 - r) + min(m, r + 1)
    """
    size = Size(ranks, chunks, micro_batches)
    return tuple(1 if size.stages == 1 else _peak(kind, rank, size) for rank in range(ranks))


def _peak(kind: str, rank: int, size: Size) -> int:
    p, v, m = size
    match kind:
        case "1f1b":
            return min(p - rank, m)
        case "interleaved":
            longest = len(rounds(size)[0])
            return min((v - 1) * longest + 2 * (p - rank) - 1, v * m) if v > 1 else min(p - rank, m)
        case "zb_h1":
            return min(p, m)
        case "zb_v":
            return min(m, 2 * p - 1 - rank) + min(m, rank + 1)
        case _:
            return v * m


def messages(kind: str, ranks: int, chunks: int, micro_batches: int) -> tuple[Sent, ...]:
    """Messages that each rank sends in a step: m for every border that its stages have with another rank.

    A loop has a border after each of its p v stages but the last, so v times the messages of one chunk
    (arXiv 2104.04473). The V turns inside the last rank: 2 (p - 1) borders.
    """
    if ranks == 1:
        return (Sent(0, 0),)
    if KINDS[kind].placement == "v":
        borders = [(rank < ranks - 1) + (rank > 0) for rank in range(ranks)]
        return tuple(Sent(micro_batches * count, micro_batches * count) for count in borders)
    return tuple(
        Sent(micro_batches * (chunks - (rank == ranks - 1)), micro_batches * (chunks - (rank == 0)))
        for rank in range(ranks)
    )


def bytes_sent(
    kind: str, ranks: int, chunks: int, micro_batches: int, message_bytes: int
) -> tuple[Sent, ...]:
    """Bytes that each rank sends in a step and direction.

    ``message_bytes`` is one micro-batch's activation between blocks: sequence / (cp tp) x batch x hidden x
    bytes of an element. Its gradient is as large.
    """
    counts = messages(kind, ranks, chunks, micro_batches)
    return tuple(Sent(n.activations * message_bytes, n.gradients * message_bytes) for n in counts)


def chunk_collectives(
    kind: str, ranks: int, chunks: int, micro_batches: int, *, keep_gradients: bool = False
) -> Collectives:
    """Collectives per chunk and step when data-parallel ranks share parameters, freed after each visit (ZeRO-3).

    Chunk by chunk (breadth_first, layered) a chunk is visited once per pass: 2 gathers and 1 reduction, for any
    m (arXiv 2106.02679). Micro-batch by micro-batch, as any other kind does with the layers of a stage, it
    is 2 m gathers and m reductions, or 1 if whole gradients are kept until the end (``keep_gradients``).
    """
    if kind in CHUNK_BY_CHUNK and ranks * chunks > 1:
        return Collectives(gathers=2, reductions=1)
    return Collectives(gathers=2 * micro_batches, reductions=1 if keep_gradients else micro_batches)
