"""What a schedule costs, by formula: bubble, activations in flight, messages, gathers of sharded parameters.

Sizes are p ranks, v chunks (stages per rank) and m micro-batches; f, b, i and w are the seconds of a forward, a whole
backward and its two parts on one stage. Every formula equals the count or the simulation of the lists.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.schedules.actions import Costs, Size
from engine.schedules.algorithms import NoFormError
from engine.schedules.registry import KINDS, kept, plan


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
        NoFormError: no closed form is known for these costs; simulate the plan instead.
    """
    size = Size(ranks, chunks, micro_batches)
    if ranks == 1:
        return 0.0
    form = KINDS[kind].idle
    if form is None:
        raise NoFormError(f"{kind}: no closed form; simulate the plan")
    return form(size, costs)


def in_flight(kind: str, ranks: int, chunks: int, micro_batches: int) -> tuple[int, ...]:
    """Peak number of activations on each rank r, in chunks x micro-batches, kept from F to the end of B or W.

    By the form of the schedule, or counted in its lists where it has none; 1 with one stage.
    """
    size, form = Size(ranks, chunks, micro_batches), KINDS[kind].peak
    if size.stages == 1:
        return (1,)
    if form is None:
        return tuple(map(kept, plan(kind, ranks, chunks, micro_batches).actions))
    return tuple(form(rank, size) for rank in range(ranks))


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
    if KINDS[kind].chunk_by_chunk and ranks * chunks > 1:
        return Collectives(gathers=2, reductions=1)
    return Collectives(gathers=2 * micro_batches, reductions=1 if keep_gradients else micro_batches)
