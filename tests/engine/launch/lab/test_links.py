"""Links of the lab carry what was asked for: one way, and both ways at once."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from engine.comm.channel import Channel, start_hop
from engine.config.sections import Lab
from engine.launch.pool import RankHosts
from tests.support.engine.lab import needs_lab
from tests.support.ranks import on_ranks_of

MOST_ROUNDS = 16


def send(rank: int, elements: int) -> list[float]:
    """Seconds from a message's begin to its answer, from the first host to the second, round after round."""
    own = Channel(dist.group.WORLD, torch.device("cpu"))
    x, note = torch.ones(elements), torch.ones(1)
    took = []
    for _ in range(4):
        own.all_reduce(note)
        begin = time.perf_counter()
        (own.send(x, 1) if rank == 0 else own.receive(x, 0)).wait()
        (own.receive(note, 1) if rank == 0 else own.send(note, 0)).wait()
        took.append(time.perf_counter() - begin)
    return took


@pytest.mark.drawn(1)
@needs_lab
@pytest.mark.parametrize("rate_mbit", [20.0, 200.0])
def test_the_rate_is_kept(rate_mbit: float) -> None:
    """Payload arrives at the rate less the headers, within 10 %: never faster, and as fast in the best round. Others on
    the processors make rounds slow, never fast: then there are more of them.
    """
    elements, payload_mbit = int(rate_mbit * 1e6 / 8 / 4), rate_mbit * 1448 / 1514
    rates: list[float] = []
    place = RankHosts(Lab(hosts=2, rate_mbit=rate_mbit))
    try:
        while len(rates) < MOST_ROUNDS and max(rates, default=0.0) < 0.9 * payload_mbit:
            rates += [4e-6 * 8 * elements / took for took in on_ranks_of(place, 2, send, elements)[0]]
    finally:
        place.close()
    assert max(rates) == pytest.approx(payload_mbit, rel=0.10), rates


def swap(rank: int, elements: int) -> list[float]:
    """Seconds for a message to the other rank and one from it at the same time, round after round."""
    own = Channel(dist.group.WORLD, torch.device("cpu"))
    x, into, took = torch.ones(elements), torch.empty(elements), []
    for _ in range(5):
        own.all_reduce(torch.ones(1))
        begin = time.perf_counter()
        start_hop(own, x, 1 - rank, into, 1 - rank).wait()
        took.append(time.perf_counter() - begin)
    return took


@needs_lab
def test_opposing_messages_both_go_at_the_rate() -> None:
    """A link carries its rate each way at the same time: two opposing messages take as long as one, not twice."""
    elements, rate_mbit = 625_000, 100.0
    place = RankHosts(Lab(hosts=2, rate_mbit=rate_mbit))
    try:
        found = on_ranks_of(place, 2, swap, elements)
    finally:
        place.close()
    alone = elements * 32e-6 / (rate_mbit * 1448 / 1514)
    for took in found:
        assert alone / 1.1 < min(took) < 1.5 * alone, (found, alone)
