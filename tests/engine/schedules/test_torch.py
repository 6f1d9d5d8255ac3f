"""The lists that torch.distributed.pipelining makes for the same schedules, read without running anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from engine.schedules.actions import Plan
from engine.schedules.registry import plan
from tests.engine.schedules.test_registry import chunks_of

Lists = list[list[str]]


def theirs(name: str, ranks: int, chunks: int, micro_batches: int) -> Lists:
    """What torch's class would execute, without its idle places; its constructor only asks stages for numbers."""
    stages = [
        SimpleNamespace(group_size=ranks, group_rank=0, num_stages=ranks * chunks, submod=None)
        for _ in range(chunks)
    ]
    return computed(getattr(torch_schedules, name)(stages, micro_batches).pipeline_order)


def computed(order: dict[int, list[Any]]) -> Lists:
    """Each rank's actions without idle places and communication."""
    return [[str(a) for a in order[rank] if a and a.is_compute_op] for rank in sorted(order)]


def ours(made: Plan) -> Lists:
    """A plan in torch's spelling: stage, kind of work, micro-batch."""
    return [[f"{stage}{work}{m}" for work, m, stage in actions] for actions in made.actions]


@pytest.mark.parametrize(
    ("kind", "name", "least_chunks"),
    [
        ("breadth_first", "ScheduleLoopedBFS", 1),
        ("interleaved", "ScheduleInterleaved1F1B", 2),
        ("zb_h1", "ScheduleInterleavedZeroBubble", 1),
        ("zb_v", "ScheduleZBVZeroBubble", 2),
    ],
)
def test_same_lists_as_torch(kind: str, name: str, least_chunks: int) -> None:
    compared = 0
    for ranks in (2, 3, 4, 8):
        for chunks in chunks_of(kind, most=3):
            for micro_batches in (1, 2, 4, 8, 9, 12):
                uneven = micro_batches % max(1, micro_batches // ranks)
                if chunks < least_chunks or ("Interleaved" in name and uneven):
                    continue  # torch refuses rounds of unequal length
                made = plan(kind, ranks, chunks, micro_batches)
                assert ours(made) == theirs(name, ranks, chunks, micro_batches)
                compared += 1
    assert compared >= 20


@pytest.mark.parametrize(("kind", "name"), [("gpipe", "ScheduleGPipe"), ("1f1b", "Schedule1F1B")])
def test_same_lists_as_torch_with_one_stage_per_rank(kind: str, name: str) -> None:
    # torch 2.13 counts the forwards of Schedule1F1B's last rank from 1 in the list that it shows (not in the
    # steps that it runs), so that rank is left out.
    for ranks in (2, 4):
        shown = ranks if kind == "gpipe" else ranks - 1
        for micro_batches in (4, 8):
            stage = SimpleNamespace(num_stages=ranks, submod=None)
            order = getattr(torch_schedules, name)(stage, micro_batches).pipeline_order
            assert ours(plan(kind, ranks, 1, micro_batches))[:shown] == computed(order)[:shown]
