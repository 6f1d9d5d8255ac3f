"""What a schedule costs, by formula: bubble and activations in flight.

Sizes are p ranks, v chunks (stages per rank) and m micro-batches; f, b, i and w are the seconds of a forward, a whole
backward and its two parts on one stage. Every formula equals the count or the simulation of the lists.
"""

from __future__ import annotations

from engine.schedules.actions import Costs, Size
from engine.schedules.algorithms import NoFormError
from engine.schedules.registry import SCHEDULES, peak_activations, plan


def busy_seconds(kind: str, chunks: int, micro_batches: int, costs: Costs) -> float:
    """Seconds that every rank computes in a step: v m (f + b), or v m (f + i + w) with a split backward."""
    splits = SCHEDULES[kind].splits_backward
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
    form = SCHEDULES[kind].idle
    if form is None:
        raise NoFormError(f"{kind}: no closed form; simulate the plan")
    return form(size, costs)


def peak_in_flight(kind: str, ranks: int, chunks: int, micro_batches: int) -> tuple[int, ...]:
    """Peak number of activations on each rank r, in chunks x micro-batches, kept from F to the end of B or W.

    By the form of the schedule, or counted in its lists where it has none; 1 with one stage.
    """
    size, form = Size(ranks, chunks, micro_batches), SCHEDULES[kind].peak
    if size.stages == 1:
        return (1,)
    if form is None:
        return tuple(map(peak_activations, plan(kind, ranks, chunks, micro_batches).actions))
    return tuple(form(rank, size) for rank in range(ranks))
