"""A ring's hop as two messages and as one batch: the same arrives, and both are on record."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.distributed as dist

from engine.comm.channel import Channel, start_batched, start_hop
from engine.parallel.context.ring import RingAttention
from profilers.collectives.recorder import CollectiveRecorder
from profilers.steps.clock import CpuClock
from profilers.steps.timer import StepTimer
from tests.support.ranks import on_ranks

ELEMENTS = 1_000


def around(rank: int, size: int) -> list[tuple[float, list[tuple[str, int]]]]:
    """What arrives from the rank before, and what is on record, for each way; in a group that is not the world."""
    members = list(range(size))[::-1]
    in_this_order = (
        {"sort_ranks": False} if "sort_ranks" in inspect.signature(dist.new_group).parameters else {}
    )
    group: Any = (
        dist.new_group(members, **in_this_order) if size < dist.get_world_size() else dist.group.WORLD
    )
    if rank >= size:
        return []
    channel = Channel(group, torch.device("cpu"))
    found = []
    for start in (start_hop, start_batched):
        recorder = CollectiveRecorder(StepTimer(CpuClock()), {})
        x = torch.full((ELEMENTS,), float(channel.rank))
        after, before = (channel.rank + 1) % size, (channel.rank - 1) % size
        recorder.start()
        arrived = start(channel, x, after, torch.empty_like(x), before).wait()
        recorder.stop()
        notes = recorder.take()
        assert arrived.unique().numel() == 1
        assert all(note.ended for note in notes)
        calls = [(note.operation, note.bytes) for note in notes]
        found.append((float(arrived[0]) - before, calls))
    return found


@pytest.mark.parametrize(("world", "size"), [(2, 2), (3, 3), (3, 2)])
def test_both_ways_bring_the_same(world: int, size: int) -> None:
    for found in on_ranks(world, around, size)[:size]:
        for difference, calls in found:
            assert difference == 0.0
            assert sorted(calls) == [("recv", 4 * ELEMENTS), ("send", 4 * ELEMENTS)]


def attention(rank: int) -> list[bool]:
    """Whether ring attention and its gradients have the same bits when each hop is a batch."""
    results = []
    for batches in (False, True):
        channel = Channel(dist.group.WORLD, torch.device("cpu"))
        assert not channel.batches, "gloo needs none"
        channel.batches = batches
        generator = torch.Generator().manual_seed(rank)
        query, key, value = (torch.randn(1, 2, 16, 8, generator=generator).requires_grad_() for _ in range(3))
        out = RingAttention(channel).attend(query, key, value)
        results.append([out.detach(), *torch.autograd.grad(out.square().sum(), (query, key, value))])
    return [torch.equal(one, other) for one, other in zip(*results, strict=True)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_ring_of_batches_attends_the_same(ranks: int) -> None:
    assert on_ranks(ranks, attention) == [[True] * 4] * ranks
