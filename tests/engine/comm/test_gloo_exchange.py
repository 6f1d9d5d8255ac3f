"""An all-to-all by messages between pairs: the rows that belong there, uneven and empty ones, and several under way."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm import gloo_exchange
from engine.comm.channel import Channel
from engine.compression.interface import Link
from tests.support.ranks import on_ranks

WORLD = 3
CPU = torch.device("cpu")


def rows(source: int, target: int, count: int) -> Tensor:
    """What one rank has for another: [count, 2] of numbers that tell both and their place."""
    return torch.arange(2 * count, dtype=torch.float32).view(count, 2) + 1_000_000 * source + 100_000 * target


def uneven(rank: int, sizes: list[list[int]]) -> list[bool]:
    """``sizes[source][target]`` rows, sent twice, and the second exchange begun before the first is waited for."""
    channel = Channel(dist.group.WORLD, CPU)
    mine = torch.cat([rows(rank, target, count) for target, count in enumerate(sizes[rank])])
    receive = [row[rank] for row in sizes]
    expected = torch.cat([rows(source, rank, count) for source, count in enumerate(receive)])
    got = channel.all_to_all(mine, sizes[rank], receive)
    backend = dist.group.WORLD._get_backend(CPU)
    outs = [torch.empty_like(expected) for _ in range(2)]
    under_way = [
        gloo_exchange.start(backend, out, mine * sign, receive, sizes[rank])
        for out, sign in zip(outs, (1, -1), strict=True)
    ]
    for messages in under_way[::-1]:
        messages.wait()
    return [
        torch.equal(got, expected),
        torch.equal(outs[0], expected),
        torch.equal(outs[1], -expected),
    ]


@pytest.mark.parametrize(
    "sizes",
    [
        [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
        [[0, 0, 5], [0, 0, 0], [30_000, 1, 0]],
        [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
    ],
    ids=("uneven", "mostly empty", "nothing"),
)
def test_rows_arrive_in_the_order_of_ranks(sizes: list[list[int]]) -> None:
    assert on_ranks(WORLD, uneven, sizes) == [[True] * 3] * WORLD


def coarse(rank: int, bytes_: int) -> bool:
    """A compressor's exchange of so many bytes to each rank."""
    link = Link(dist.group.WORLD, CPU)
    x = torch.arange(WORLD * bytes_).add(rank).remainder(251).to(torch.uint8)
    out = torch.empty_like(x)
    link.all_to_all(out, x).wait()
    at = slice(rank * bytes_, (rank + 1) * bytes_)
    parts = [torch.arange(WORLD * bytes_).add(other).remainder(251).to(torch.uint8) for other in range(WORLD)]
    return torch.equal(out, torch.cat([part[at] for part in parts]))


@pytest.mark.parametrize(
    "bytes_", [16, gloo_exchange.LARGE - 1, gloo_exchange.LARGE, 4 * gloo_exchange.LARGE]
)
def test_messages_of_any_length_arrive(bytes_: int) -> None:
    """On both sides of the length from which on they go pair by pair."""
    assert on_ranks(WORLD, coarse, bytes_) == [True] * WORLD


def lonely(rank: int) -> str:
    """What waiting for peers that never come ends in."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank:
        return ""
    x = torch.ones(WORLD * gloo_exchange.LARGE)
    try:
        Channel(group, CPU).all_to_all(x)
    except RuntimeError:
        return "raised"
    return "went on"


def test_peers_that_do_not_come_are_an_error() -> None:
    assert on_ranks(WORLD, lonely)[0] == "raised"
