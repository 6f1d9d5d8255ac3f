"""Attention over a sequence that is split over ranks equals attention over the whole of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from engine.comm.channel import Channel
from engine.parallel.context.attention import MATMUL
from engine.parallel.context.axis import context_axis
from engine.parallel.context.ring import RingAttention
from profilers.collectives.recorder import CollectiveRecorder
from profilers.steps.clock import CpuClock
from profilers.steps.timer import StepTimer
from tests.support.engine.sent_bytes import ring_bytes, ulysses_bytes
from tests.support.ranks import on_ranks

BATCH, SEQUENCE = 2, 48
#: heads, kv_heads, head_dim: groups of 1, 2 and 4 query heads, also where no kernel likes the width.
SHAPES = [(4, 4, 24), (8, 4, 24), (16, 4, 24), (8, 4, 17)]
ONE_KEY_HEAD = (3, 1, 24)
#: Largest difference over largest value: of the result and of the gradients of query, key and value.
TOLERANCE = 1e-5
HALF_TOLERANCE = 2e-2


def channel() -> Channel:
    return Channel(dist.group.WORLD, torch.device("cpu"))


def tensors(shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Query, key, value and a gradient of the result for the whole sequence, the same on every rank."""
    heads, kv_heads, head_dim = shape
    generator = torch.Generator().manual_seed(7)
    counts = (heads, kv_heads, kv_heads, heads)
    return [torch.randn(BATCH, n, SEQUENCE, head_dim, generator=generator).to(dtype) for n in counts]


def results(attend: Any, inputs: list[Tensor], gradient: Tensor) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = attend(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, gradient)]


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def differences(attend: Any, mine: Tensor, shape: tuple[int, int, int], dtype: torch.dtype) -> list[float]:
    whole = tensors(shape, dtype)
    expected = results(plain, [x.float() for x in whole[:3]], whole[3].float())
    local = [x[:, :, mine] for x in whole]
    found = results(attend, local[:3], local[3])
    assert all(x.dtype is dtype for x in found)
    pairs = zip(found, expected, strict=True)
    return [((a.float() - b[:, :, mine]).abs().max() / b.abs().max()).item() for a, b in pairs]


def exactness(rank: int, method: Any, dtype: torch.dtype) -> list[list[float]]:
    axis = context_axis(method, channel())
    mine = axis.positions(SEQUENCE)
    shapes = [*SHAPES, ONE_KEY_HEAD] if method == "ring" else SHAPES
    found = [differences(axis.attend, mine, shape, dtype) for shape in shapes]
    again = lambda *inputs: checkpoint(axis.attend, *inputs, use_reentrant=False)  # noqa: E731
    found.append(differences(again, mine, SHAPES[1], dtype))
    if method == "ring":
        slow = RingAttention(channel(), MATMUL)
        found.append(differences(slow.attend, mine, SHAPES[1], dtype))
    return found


@pytest.mark.parametrize(
    ("method", "world_size"), [("ring", 2), ("ring", 3), ("ring", 4), ("ulysses", 2), ("ulysses", 4)]
)
def test_result_and_gradients_equal_those_of_the_whole_sequence(method: str, world_size: int) -> None:
    found = on_ranks(world_size, exactness, method, torch.float32)
    assert max(value for of_rank in found for case in of_rank for value in case) < TOLERANCE, found


@pytest.mark.parametrize("method", ["ring", "ulysses"])
def test_bf16_stays_within_its_rounding(method: str) -> None:
    found = on_ranks(2, exactness, method, torch.bfloat16)
    assert max(value for of_rank in found for case in of_rank for value in case) < HALF_TOLERANCE, found


def kept_by_ring(rank: int, shape: tuple[int, int, int], dtype: torch.dtype) -> int:
    """Bytes that attention and the matrix behind it keep, beside that matrix."""
    axis = context_axis("ring", channel())
    local = [x[:, :, axis.positions(SEQUENCE)].clone().requires_grad_() for x in tensors(shape, dtype)[:3]]
    matrix = torch.eye(shape[0] * shape[2], dtype=dtype, requires_grad=True)
    seen: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        F.linear(axis.attend(*local).permute(2, 0, 1, 3).flatten(2), matrix)
    seen.pop(matrix.untyped_storage().data_ptr())
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_a_ring_keeps_its_result_once(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """As the matrix behind it reads it; with queries, keys, values and a number in fp32 for each query."""
    heads, kv_heads, head_dim = shape
    places = BATCH * SEQUENCE // 2
    wanted = places * (dtype.itemsize * head_dim * 2 * (heads + kv_heads) + 4 * heads)
    assert on_ranks(2, kept_by_ring, shape, dtype) == [wanted, wanted]


def compiled(rank: int, method: Any) -> tuple[list[float], int]:
    axis = context_axis(method, channel())
    attend = torch.compile(lambda query, *rest: axis.attend(query + 0, *rest) + 0, backend="aot_eager")
    found = differences(attend, axis.positions(SEQUENCE), SHAPES[1], torch.float32)
    return found, sum(torch._dynamo.utils.counters["graph_break"].values())


@pytest.mark.parametrize(("method", "breaks"), [("ring", 1), ("ulysses", 0)])
def test_compiled_code_may_attend(method: str, breaks: int) -> None:
    for found, broken in on_ranks(2, compiled, method):
        assert max(found) < TOLERANCE
        assert broken == breaks


def work(rank: int) -> tuple[list[float], list[float]]:
    forward: list[float] = []
    backward: list[float] = []

    def noted(areas: list[float], function: Any, query_at: int) -> Any:
        def call(*arguments: Any) -> Any:
            query, key, causal = arguments[query_at], arguments[query_at + 1], arguments[-1]
            queries, keys = query.shape[2], key.shape[2]
            areas.append(queries * (queries + 1) / 2 if causal else queries * keys)
            return function(*arguments)

        return call

    kernel = MATMUL._replace(
        forward=noted(forward, MATMUL.forward, 0), backward=noted(backward, MATMUL.backward, 1)
    )
    axis = RingAttention(channel(), kernel)
    local = [x[:, :, axis.positions(SEQUENCE)] for x in tensors(SHAPES[0])]
    results(axis.attend, local[:3], local[3])
    return forward, backward


def test_every_rank_of_a_ring_works_as_much_at_every_step() -> None:
    found = on_ranks(4, work)
    forward, backward = found[0]
    assert len(forward) == 4
    assert forward == backward
    assert all(of_rank == found[0] for of_rank in found)
    assert sum(sum(areas) for areas, _ in found) == SEQUENCE * (SEQUENCE + 1) / 2


def sent(rank: int, dtype: torch.dtype) -> list[list[dict[str, int]]]:
    return [sent_by(context_axis(method, channel()), dtype) for method in ("ring", "ulysses")]


def sent_by(axis: Any, dtype: torch.dtype) -> list[dict[str, int]]:
    """Bytes by operation, forward and backward."""
    recorder = CollectiveRecorder(StepTimer(CpuClock()), {})
    whole = tensors(SHAPES[2], dtype)
    query, key, value, gradient = (x[:, :, axis.positions(SEQUENCE)].requires_grad_() for x in whole)
    recorder.start()
    out = axis.attend(query, key, value)
    forward = recorder.take()
    out.backward(gradient)
    backward = recorder.take()
    recorder.stop()
    assert all(call.ended for call in forward + backward)
    return [
        {
            name: sum(call.bytes for call in calls if call.operation == name)
            for name in {c.operation for c in calls}
        }
        for calls in (forward, backward)
    ]


@pytest.mark.parametrize(("world_size", "dtype"), [(2, torch.bfloat16), (4, torch.float32)])
def test_bytes_are_those_of_the_formulae(world_size: int, dtype: torch.dtype) -> None:
    heads, kv_heads, head_dim = SHAPES[2]
    sizes = {
        "size": world_size,
        "batch": BATCH,
        "sequence_length": SEQUENCE,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "element_bytes": dtype.itemsize,
    }
    ring = [ring_bytes("forward", **sizes), ring_bytes("backward", **sizes)]
    ulysses = ulysses_bytes(heads=heads, **sizes)
    expected = [[{"send": n, "recv": n} for n in ring], [{"all_to_all": ulysses}] * 2]
    assert on_ranks(world_size, sent, dtype) == [expected] * world_size


def swapped(rank: int) -> list[Any]:
    """Even rows, uneven rows, and rows for and from nobody; row values say who sent them to whom."""
    end = channel()
    even = end.all_to_all(torch.tensor([[10 * rank + to] for to in range(end.size) for _ in range(2)]))
    counts = [[(source + 2 * target) % 4 for target in range(end.size)] for source in range(end.size)]
    give, take = counts[rank], [row[rank] for row in counts]
    rows = torch.tensor([10 * rank + to for to in range(end.size) for _ in range(give[to])])
    uneven = end.all_to_all(rows.bfloat16().view(-1, 1).expand(-1, 3), give, take)
    wanted = torch.tensor([10 * source + rank for source in range(end.size) for _ in range(take[source])])
    assert torch.equal(uneven, wanted.bfloat16().view(-1, 1).expand(-1, 3))
    only_first = [end.size if rank == 0 else 0] + [0] * (end.size - 1)
    back = [end.size] + [0] * (end.size - 1) if rank == 0 else [0] * end.size
    nothing = end.all_to_all(torch.full((sum(only_first), 2), rank), only_first, back)
    return [even.flatten().tolist(), list(nothing.shape)]


@pytest.mark.parametrize("world_size", [2, 3])
def test_rows_reach_the_ranks_they_are_for(world_size: int) -> None:
    for rank, (even, nothing) in enumerate(on_ranks(world_size, swapped)):
        assert even == [10 * source + rank for source in range(world_size) for _ in range(2)]
        assert nothing == [world_size if rank == 0 else 0, 2]
