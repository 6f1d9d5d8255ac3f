"""The formulas of wire bytes against the counters of real interfaces, one host a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist

from engine.comm import channel
from engine.comm.channel import Channel
from engine.config.sections import Lab
from engine.launch.pool import RankHosts
from profilers.collectives.wire_bytes import EXCHANGE, wire_bytes
from tests.support.engine.lab import counted, needs_lab
from tests.support.ranks import on_ranks_of

pytestmark = needs_lab

#: Elements of fp32 that a rank holds, or is to get: below and above what goes by exchange.
SMALL, LARGE = 1_500, 150_000
TIMES = 6


@pytest.fixture(scope="module", params=[2, 3, 4])
def place(request: pytest.FixtureRequest) -> Iterator[RankHosts]:
    """As many hosts as ranks, links as fast as they go."""
    made = RankHosts(Lab(hosts=request.param))
    yield made
    made.close()


def calls(size: int) -> dict[str, tuple[str, int, Callable[[], object]]]:
    """Name -> operation, payload S in bytes, and the call itself, of gloo's own algorithms."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    one, all_ = torch.ones(size), torch.ones(size * ranks)
    parts = list(torch.ones(ranks, size)) if rank == 0 else None

    def message() -> None:
        if rank == 0:
            dist.send(one, 1)
        elif rank == 1:
            dist.recv(one, 0)

    return {
        "all_reduce": ("all_reduce", one.nbytes, lambda: dist.all_reduce(one)),
        "reduce_scatter": (
            "reduce_scatter", all_.nbytes, lambda: channel.reduce_scatter_single(one.clone(), all_)),
        "all_gather": ("all_gather", all_.nbytes, lambda: channel.all_gather_single(all_.clone(), one)),
        "all_to_all": ("all_to_all", all_.nbytes, lambda: dist.all_to_all_single(all_.clone(), all_)),
        "broadcast": ("broadcast", one.nbytes, lambda: dist.broadcast(one, 0)),
        "reduce": ("reduce", one.nbytes, lambda: dist.reduce(one, 0)),
        "gather": ("gather", one.nbytes, lambda: dist.gather(one, parts, 0)),
        "scatter": ("scatter", one.nbytes, lambda: dist.scatter(one, parts, 0)),
        "send": ("send", one.nbytes, message),
    }  # fmt: skip


def exchanges(size: int) -> dict[str, tuple[str, int, Callable[[], object]]]:
    """The same of the engine's exchange, called directly, whatever the size."""
    own = Channel(dist.group.WORLD, torch.device("cpu"))._exchange
    assert own is not None
    one, all_ = torch.ones(size), torch.ones(size * dist.get_world_size())
    add = dist.ReduceOp.SUM
    return {
        "all_reduce": ("all_reduce", one.nbytes, lambda: own.all_reduce(one, add).wait()),
        "all_gather": ("all_gather", all_.nbytes, lambda: own.all_gather(all_, one).wait()),
        "reduce_scatter": (
            "reduce_scatter", all_.nbytes, lambda: own.reduce_scatter(one, all_, add).wait()),
    }  # fmt: skip


def measure(_: int, size: int, by_exchange: bool) -> dict[str, tuple[str, int, float]]:
    """Name -> operation, payload, and bytes that this rank sent per call."""
    chosen = exchanges(size) if by_exchange else calls(size)
    return {name: (kind, payload, counted(call, TIMES)) for name, (kind, payload, call) in chosen.items()}


@pytest.mark.drawn(1)
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("by_exchange", [False, True], ids=["gloo", "exchange"])
def test_formula_agrees_with_the_interfaces(place: RankHosts, size: int, by_exchange: bool) -> None:
    """Within 1 %, headers removed by counting packets; summed over ranks, for a broadcast loads them unevenly."""
    ranks = place.asked.hosts
    assert ranks is not None
    found = on_ranks_of(place, ranks, measure, size, by_exchange)
    for name, (operation, payload, _) in found[0].items():
        sent = sum(rank[name][2] for rank in found)
        algorithm = EXCHANGE if by_exchange else None
        each = wire_bytes(operation, "gloo", algorithm, ranks, np.array([payload]))
        assert each is not None
        # A message has one sender, whatever the size of the group.
        formula = float(each[0]) * (1 if operation == "send" else ranks)
        assert sent == pytest.approx(formula, rel=0.01), (name, ranks, size)
