"""Schedules that make ranks do the same under other names; measuring both would waste a trial. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from engine.schedules.actions import Action
from engine.schedules.registry import KINDS, plan

#: Lists that are equal for two micro-batches are equal for more.
TELLING = 2
#: From this stage on it matters whether parameters stay gathered from one micro-batch to the next.
GATHERING_STAGE = 3

Listed = tuple[tuple[tuple[Action, ...], ...], tuple[int, ...]]


def best_known(
    kind: str, kinds: Iterable[str], ranks: int, chunks: int, micro_batches: int, zero_stage: int
) -> str:
    """The best known of ``kinds`` that runs exactly as ``kind``; ``kind`` itself if there is none.

    ``chunks`` are the stages per rank, ``micro_batches`` those of one step and data rank.
    """
    if micro_batches < 1 or chunks not in KINDS[kind].chunks:
        return kind
    found = (other for other in KINDS if other in kinds and chunks in KINDS[other].chunks)
    few, gathers = min(micro_batches, TELLING), zero_stage >= GATHERING_STAGE and micro_batches > 1
    same = (
        other for other in found if _listed(other, ranks, chunks, few) == _listed(kind, ranks, chunks, few)
    )
    alike = (
        other for other in same if not gathers or KINDS[other].chunk_by_chunk == KINDS[kind].chunk_by_chunk
    )
    return next(alike, kind)


@lru_cache(maxsize=4_096)
def _listed(kind: str, ranks: int, chunks: int, micro_batches: int) -> Listed:
    drawn = plan(kind, ranks, chunks, micro_batches)
    return drawn.actions, tuple(drawn.rank_of)
