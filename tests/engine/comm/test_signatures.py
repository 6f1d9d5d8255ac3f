"""Every transition between two signatures: exact, with its gradient, and with the bytes that OneFlow's table says."""

from __future__ import annotations

import csv
import itertools
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.boxing import box
from engine.comm.channel import Channel
from engine.comm.signatures import PARTIAL, REPLICATED, Signature, bytes_between, split
from engine.config.sections import Lab
from engine.launch.pool import RankHosts
from engine.parallel.collectives import redistribute
from tests.support.engine.lab import counted, needs_lab
from tests.support.ranks import on_ranks, on_ranks_of

TABLE = Path(__file__).parents[3] / "benchmarks" / "data" / "oneflow_boxing_cost.csv"
SIGNATURES = (split(0), split(1), split(2), REPLICATED, PARTIAL)
TRANSITIONS = list(itertools.product(SIGNATURES, repeat=2))
RANKS = range(2, 9)


def shape_of(ranks: int) -> tuple[int, int, int]:
    """Splits evenly over so many ranks along each dimension."""
    return (35, 70, 35) if ranks in (5, 7) else (24, 48, 24)


def whole(seed: int, ranks: int) -> Tensor:
    """Small whole numbers, which add up exactly in any order."""
    return torch.randint(-8, 8, shape_of(ranks), generator=torch.Generator().manual_seed(seed)).float()


def part(tensor: Tensor, lies: Signature, rank: int, ranks: int) -> Tensor:
    """What a rank has of a tensor, made without any message; parts of a sum are drawn."""
    if lies.kind == "split":
        return tensor.chunk(ranks, lies.dim)[rank].clone()
    if lies == REPLICATED:
        return tensor.clone()
    others = [whole(100 + other, ranks) for other in range(1, ranks)]
    return others[rank - 1] if rank else tensor - sum(others, torch.zeros_like(tensor))


def together(parts: list[Tensor], lies: Signature) -> Tensor:
    """The tensor whose parts these are."""
    if lies.kind == "split":
        return torch.cat(parts, lies.dim)
    if lies == REPLICATED:
        assert all(torch.equal(one, parts[0]) for one in parts)
        return parts[0]
    return sum(parts[1:], parts[0])


def moved(rank: int) -> list[tuple[Tensor, Tensor]]:
    """Of each transition: this rank's part afterwards, and its part of the input's gradient."""
    channel, ranks = Channel(dist.group.WORLD, torch.device("cpu")), dist.get_world_size()
    found = []
    for source, target in TRANSITIONS:
        x = part(whole(0, ranks), source, rank, ranks).requires_grad_()
        out = redistribute(x, source, target, channel)
        out.backward(part(whole(1, ranks), target.of_gradient, rank, ranks))
        assert x.grad is not None
        found.append((out.detach().clone(), x.grad))
    return found


@pytest.mark.drawn(2)
@pytest.mark.parametrize("ranks", RANKS)
def test_the_tensor_and_its_gradient_stay_the_same(ranks: int) -> None:
    by_rank, tensor = on_ranks(ranks, moved), whole(0, ranks)
    for number, (source, target) in enumerate(TRANSITIONS):
        assert torch.equal(together([rank[number][0] for rank in by_rank], target), tensor), (source, target)
        gradient = together([rank[number][1] for rank in by_rank], source.of_gradient)
        assert torch.equal(gradient, whole(1, ranks)), (source, target)


def published(source: Signature, target: Signature) -> dict[str, str]:
    """The row of the table about a transition."""
    names = {one: one.kind[0].upper() for one in (source, target)}
    if source.kind == "split":
        names[source] = "S(i)"
    if target.kind == "split":
        names[target] = "S(j) i!=j" if source.kind == "split" and source != target else "S(i)"
    asked = f"{names[source]}->{names[target]}"
    with TABLE.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    (row,) = [one for one in rows if one["transition"] in (asked, asked.replace("S(i)", "S"))]
    return row


@pytest.mark.parametrize("ranks", RANKS)
def test_bytes_are_those_of_the_published_table(ranks: int) -> None:
    for source, target in TRANSITIONS:
        row, known = published(source, target), {"p1": ranks, "T": 1200.0}
        same = eval(row["same_devices_total_bytes"].replace("|T|", "T"), {}, known)
        assert bytes_between(source, target, 1200.0, ranks) == pytest.approx(same)


def sent(rank: int) -> list[float]:
    """Bytes that this rank's host sent for each transition."""
    channel, ranks = Channel(dist.group.WORLD, torch.device("cpu")), dist.get_world_size()
    wide = whole(0, ranks).repeat(1, 1, 4)
    return [
        counted(
            partial(box, _part_of(wide, source, rank, ranks), source, target, channel),
            2,
        )
        for source, target in TRANSITIONS
    ]


def _part_of(tensor: Tensor, lies: Signature, rank: int, ranks: int) -> Tensor:
    """Which numbers a sum has does not change what is sent."""
    return tensor if lies.kind != "split" else tensor.chunk(ranks, lies.dim)[rank].clone()


@needs_lab
@pytest.mark.drawn(1)
@pytest.mark.parametrize("ranks", RANKS)
def test_interfaces_count_what_the_table_says(ranks: int) -> None:
    """Within 1 % and a message's headers from each rank to each other one."""
    place = RankHosts(Lab(hosts=ranks))
    try:
        by_rank = on_ranks_of(place, ranks, sent)
    finally:
        place.close()
    bytes_ = 4 * whole(0, ranks).numel() * 4
    for number, (source, target) in enumerate(TRANSITIONS):
        told = bytes_between(source, target, bytes_, ranks)
        headers = 4 * 144 * ranks * (ranks - 1)
        assert sum(one[number] for one in by_rank) == pytest.approx(told, rel=0.01, abs=headers), (
            source,
            target,
        )
