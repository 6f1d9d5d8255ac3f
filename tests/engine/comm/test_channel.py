"""The engine's collectives: the same results as torch's, whichever way they go, and the same bits on every rank."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.channel import Channel
from engine.comm.gloo_exchange import SMALL
from tests.support.ranks import on_ranks

#: Elements of fp32 on each side of what goes by exchange.
SIZES = (1, 24, SMALL)
WORLD = 3


def tensor_of(rank: int, size: int, dtype: torch.dtype) -> Tensor:
    """A rank's part; small whole numbers add up exactly in any order."""
    return torch.randint(-8, 8, (size * WORLD, 2), generator=torch.Generator().manual_seed(rank)).to(dtype)


def collectives(rank: int, size: int, dtype: torch.dtype) -> list[bool]:
    """Whether each collective gives what the parts of all ranks say."""
    channel = Channel(dist.group.WORLD, torch.device("cpu"))
    parts = [tensor_of(other, size, dtype) for other in range(WORLD)]
    mine, total = parts[rank], sum(parts[1:], parts[0])
    summed, largest, averaged = mine.clone(), mine.clone(), mine.new_empty(size, 2)
    channel.all_reduce(summed)
    channel.all_reduce(largest, "max")
    channel.reduce_scatter_into(averaged, mine, dist.ReduceOp.AVG)
    at = slice(rank * size, (rank + 1) * size)
    return [
        torch.equal(channel.all_gather(mine), torch.cat(parts)),
        torch.equal(channel.reduce_scatter(mine), total[at]),
        torch.equal(summed, total),
        torch.equal(largest, torch.stack(parts).amax(0)),
        torch.equal(averaged, total[at] / WORLD),
        torch.equal(channel.all_to_all(mine), torch.cat([part[at] for part in parts])),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_collectives_give_what_all_ranks_hold(size: int, dtype: torch.dtype) -> None:
    """Exactly, on three ranks."""
    assert on_ranks(WORLD, collectives, size, dtype) == [[True] * 6] * WORLD


class Gathered(torch.autograd.Function):
    """Both ways through a collective whose result is new, as sequence parallelism does it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, channel: Channel) -> Tensor:
        ctx.channel = channel
        return channel.all_gather(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.channel.reduce_scatter(gradient), None


class Exchanged(torch.autograd.Function):
    """The same with all-to-alls."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, channel: Channel) -> Tensor:
        ctx.channel = channel
        return channel.all_to_all(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.channel.all_to_all(gradient), None


def compiled(rank: int, function: type[torch.autograd.Function]) -> list[tuple[list[float], list[float]]]:
    """Result and gradient, as written and compiled."""
    channel, found = Channel(dist.group.WORLD, torch.device("cpu")), []

    def run(x: Tensor) -> Tensor:
        out: Tensor = function.apply(x * 1.0, channel)  # type: ignore[no-untyped-call]
        return out * 2

    for each in (run, torch.compile(run, backend="aot_eager")):
        x = torch.arange(6.0).requires_grad_()
        y = each(x)
        (y * torch.arange(1.0, y.numel() + 1) * (rank + 1)).sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        found.append((y.tolist(), x.grad.tolist()))
    return found


@pytest.mark.parametrize("function", [Gathered, Exchanged])
def test_compiled_code_has_the_same_gradients(function: type[torch.autograd.Function]) -> None:
    """Under torch 2.11 they were zeros where a collective wrote into a tensor made for its result."""
    for written, by_compiler in on_ranks(2, compiled, function):
        assert by_compiler == written  # whole numbers
        assert min(written[1]) > 0


def scattered_beside(rank: int, size: int, dtype: torch.dtype) -> list[bool]:
    """Whether several reduce-scatters under way at a time, each into a part of its input, all give the right parts."""
    channel = Channel(dist.group.WORLD, torch.device("cpu"))
    at, results = slice(rank * size, (rank + 1) * size), []
    operations = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.SUM)
    for place, operation in enumerate(operations):
        parts = [tensor_of(other + WORLD * place, size, dtype)[:, 0].contiguous() for other in range(WORLD)]
        mine = parts[rank].clone()
        work = channel.start_reduce_scatter_into(mine[at], mine, operation)
        stacked = torch.stack(parts)
        total = stacked.amax(0) if operation == dist.ReduceOp.MAX else stacked.sum(0)
        results.append((work, mine, total / WORLD if operation == dist.ReduceOp.AVG else total))
    for work, _, _ in results[::-1]:
        work.wait()
    return [torch.equal(mine[at], total[at]) for _, mine, total in results]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_a_reduce_scatter_beside_computation_gives_the_same(size: int, dtype: torch.dtype) -> None:
    """Waited for in another order than they were started in."""
    assert on_ranks(WORLD, scattered_beside, size, dtype) == [[True] * 4] * WORLD


def lonely(rank: int) -> tuple[str, bool]:
    """What waiting for a peer that never comes ends in, and whether the result was left alone."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    assert group is not None
    x = torch.ones(2 * WORLD)
    if rank:
        return "", bool(x.eq(1).all())
    try:
        Channel(group, torch.device("cpu")).start_reduce_scatter_into(x[:2], x).wait()
    except RuntimeError as error:
        return type(error).__name__, bool(x.eq(1).all())
    return "nothing", False


def test_a_reduce_scatter_without_its_peers_raises_and_reduces_nothing() -> None:
    """An exchange that failed must not pass for one that gave zeros."""
    (error, untouched), *_ = on_ranks(WORLD, lonely)
    assert error not in ("", "nothing")
    assert untouched


def bits(rank: int) -> list[float]:
    """Sums of numbers that do not add up exactly, few and many."""
    channel, values = Channel(dist.group.WORLD, torch.device("cpu")), []
    for size in SIZES:
        x = torch.randn(size, generator=torch.Generator().manual_seed(rank))
        channel.all_reduce(x)
        values += [x.double().sum().item(), x[-1].item()]
    return values


def test_every_rank_holds_the_same_bits() -> None:
    """Ranks that disagree by one bit drift apart."""
    first, *others = on_ranks(WORLD, bits)
    assert all(other == first for other in others)


def scalars(rank: int) -> tuple[float, int]:
    """A tensor without dimensions, and one of whole numbers."""
    channel = Channel(dist.group.WORLD, torch.device("cpu"))
    alone, counts = torch.tensor(rank + 0.5, dtype=torch.float64), torch.tensor([rank + 1], dtype=torch.int32)
    channel.all_reduce(alone)
    channel.all_reduce(counts)
    return alone.item(), int(counts.item())


def test_scalars_and_counts_add_up() -> None:
    """Loss, norm and tokens per expert travel so."""
    assert on_ranks(WORLD, scalars) == [(4.5, 6)] * WORLD
