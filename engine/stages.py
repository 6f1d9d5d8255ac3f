"""Which layers each pipeline stage holds. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def layers_of_stages(layers: int, stages: int, given: Sequence[int] | None = None) -> list[range]:
    """Consecutive layers of each stage: as many as ``given`` says, else dealt evenly with the rest to the first ones.

    The last stage has the head to compute, so it never gets one layer more than the others.
    """
    counts = given or [layers // stages + (stage < layers % stages) for stage in range(stages)]
    starts = [sum(counts[:stage]) for stage in range(stages)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
