"""Pieces of context parallelism without ranks: placement, masks, softmax from blocks, kernels, order of messages."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.parallel.context.attention import MATMUL, BlockKernel, block_kernel, causal_attention
from engine.parallel.context.axis import UlyssesAttention, WholeSequence, context_axis
from engine.parallel.context.ring import RingAttention, combine_, visible

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
#: Largest difference over largest value; half precision rounds results to 8 or 11 bits.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 4e-3}


class Script:
    """A channel that notes what is asked of it; whatever arrives is zero."""

    batches = False

    def __init__(self, size: int, rank: int) -> None:
        self.size, self.rank = size, rank
        self.events: list[tuple[str, int]] = []

    def send(self, x: Tensor, target: int) -> Any:
        self.events.append(("send", target))
        return SimpleNamespace(wait=lambda: x)

    def receive(self, into: Tensor, source: int) -> Any:
        self.events.append(("receive", source))
        return SimpleNamespace(wait=lambda: self._arrived(into, source))

    def _arrived(self, into: Tensor, source: int) -> Tensor:
        self.events.append(("arrived", source))
        return into.zero_()


def axis(kind: Any, size: int, rank: int) -> Any:
    return kind(Script(size, rank))


def relative(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(
    kind=st.sampled_from([RingAttention, UlyssesAttention]), size=st.integers(1, 9), chunk=st.integers(1, 5)
)
def test_positions_share_out_the_sequence(kind: Any, size: int, chunk: int) -> None:
    length = 2 * size * chunk
    shares = [axis(kind, size, rank).positions(length) for rank in range(size)]
    assert {tuple(share.shape) for share in shares} == {(length // size,)}
    assert all(share.dtype is torch.int64 and bool((share.diff() > 0).all()) for share in shares)
    assert torch.equal(torch.cat(shares).sort().values, torch.arange(length))


def test_a_sequence_that_does_not_split_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        axis(RingAttention, 4, 0).positions(12)
    with pytest.raises(ValueError, match="multiple of 4"):
        axis(UlyssesAttention, 4, 0).positions(10)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 4), (4, 2), (4, 1)])
def test_heads_that_do_not_split_are_refused(heads: int, kv_heads: int) -> None:
    query, key = torch.zeros(1, heads, 4, 8), torch.zeros(1, kv_heads, 4, 8)
    with pytest.raises(ValueError, match=f"multiples of 4, got {heads} and {kv_heads}"):
        axis(UlyssesAttention, 4, 0).attend(query, key, key)


@given(size=st.integers(1, 6), chunk=st.integers(1, 3))
def test_visible_blocks_are_the_causal_mask(size: int, chunk: int) -> None:
    length = 2 * size * chunk
    seen = torch.zeros(length, length, dtype=torch.int64)
    for rank in range(size):
        for source in range(size):
            rows, columns, causal = visible(rank, source, chunk)
            mine = axis(RingAttention, size, rank).positions(length)[rows]
            theirs = axis(RingAttention, size, source).positions(length)[columns]
            block = torch.ones(len(mine), len(theirs), dtype=torch.int64)
            seen[mine.unsqueeze(1), theirs] += block.tril() if causal else block
    assert torch.equal(seen, torch.ones_like(seen).tril())


def softmax(scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


@given(
    widths=st.lists(st.integers(1, 4), min_size=2, max_size=5),
    scale=st.sampled_from([1e-3, 1.0, 30.0, 1e3]),
    seed=st.integers(0, 1000),
    order=st.randoms(use_true_random=False),
)
def test_softmax_from_blocks_in_any_order_is_the_softmax(
    widths: list[int], scale: float, seed: int, order: Any
) -> None:
    scores, value = scale * randn(2, 3, sum(widths), seed=seed), randn(2, sum(widths), 5, seed=seed + 1)
    parts = list(zip(scores.split(widths, -1), value.split(widths, -2), strict=True))
    order.shuffle(parts)
    blocks = [softmax(*part) for part in parts]
    cut = len(blocks) // 2  # (a + b) + (c + d), not only one after the other
    (left, *lefts), (right, *rights) = blocks[:cut], blocks[cut:]
    for total, others in ((left, lefts), (right, rights)):
        for other in others:
            combine_(*total, *other)
    combine_(*left, *right)
    out, log_sum = softmax(scores, value)
    torch.testing.assert_close(left[0], out, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(left[1], log_sum, rtol=1e-9, atol=1e-9)


def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return softmax(scores, value)


def kernel_differences(kernel: BlockKernel, inputs: list[Tensor], causal: bool) -> list[float]:
    """Against the same in fp64: result, log-sum-exp, gradients of query, key and value."""
    query, key, value, gradient = inputs
    leaves = [x.double().requires_grad_() for x in (query, key, value)]
    expected = attention(*leaves, causal)
    wanted = [*expected, *torch.autograd.grad(expected[0], leaves, gradient.double())]
    found = kernel.attend(query, key, value, causal)
    gradients = kernel.gradients(gradient, query, key, value, *found, causal)
    assert found[1].dtype is torch.promote_types(query.dtype, torch.float32)
    return [relative(a, b) for a, b in zip([*found, *gradients], wanted, strict=True)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("group", "head_dim"), [(1, 24), (4, 24), (2, 17), (8, 64)])
def test_kernels_agree(device: str, dtype: torch.dtype, causal: bool, group: int, head_dim: int) -> None:
    # Slices of longer tensors, as the ring hands them on; 40 rows are no multiple of any kernel's tile.
    whole = [randn(3, heads, 80, head_dim, seed=heads).to(device, dtype) for heads in (group, 1, 1, group)]
    inputs = [x[:, :, 40:] for x in whole]
    for kernel in (block_kernel(inputs[0], inputs[1]), MATMUL):
        found = kernel_differences(kernel, inputs, causal)
        assert max(found) < TOLERANCE[dtype], found


def test_the_cpu_has_a_fused_kernel() -> None:
    query = torch.zeros(1, 2, 4, 8)
    assert block_kernel(query, query[:, :1]).forward is not MATMUL.forward


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 4), (8, 1)])
def test_one_rank_computes_grouped_queries(
    device: str, dtype: torch.dtype, heads: int, kv_heads: int
) -> None:
    leaves = [
        randn(2, n, 20, 24, seed=seed).to(device, dtype).requires_grad_()
        for seed, n in enumerate((heads, kv_heads, kv_heads))
    ]
    gradient = randn(2, heads, 20, 24, seed=9).to(device, dtype)
    out = causal_attention(*leaves)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    repeated = [x.repeat_interleave(heads // kv_heads, 1) for x in exact[1:]]
    wanted, _ = attention(exact[0], *repeated, True)
    found = [out, *torch.autograd.grad(out, leaves, gradient)]
    expected = [wanted, *torch.autograd.grad(wanted, exact, gradient.double())]
    assert max(relative(a, b) for a, b in zip(found, expected, strict=True)) < TOLERANCE[dtype]


def test_without_a_channel_one_rank_holds_everything() -> None:
    whole = context_axis("ring", None)
    assert whole == WholeSequence()
    assert (whole.size, whole.rank) == (1, 0)
    assert whole.positions(5).tolist() == [0, 1, 2, 3, 4]


def scripts(size: int) -> list[list[tuple[str, int]]]:
    """What each rank of a ring asks of its channel, forward and backward; "compute" where a kernel runs."""
    found = []
    for rank in range(size):
        script = Script(size, rank)

        def forward(*arguments: Any, events: Any = script.events) -> Any:
            events.append(("compute", -1))
            return MATMUL.forward(*arguments)

        def backward(*arguments: Any, events: Any = script.events) -> Any:
            events.append(("compute", -1))
            return MATMUL.backward(*arguments)

        ring = RingAttention(script, BlockKernel(forward, backward, grouped=False))  # type: ignore[arg-type]
        leaves = [torch.zeros(1, 1, 4, 2, requires_grad=True) for _ in range(3)]
        ring.attend(*leaves).backward(torch.ones(1, 1, 4, 2))
        found.append(script.events)
    return found


@pytest.mark.parametrize("size", range(2, 8))
def test_every_wait_is_for_a_message_that_its_peer_comes_to_send(size: int) -> None:
    """Posting blocks nobody; who waits goes on once its peer has posted as many messages as it waits for."""
    left = dict(enumerate(scripts(size)))
    posted, received = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    while any(left.values()):
        before = sum(map(len, left.values()))
        for rank, events in left.items():
            while events and not (events[0][0] == "arrived" and not posted[events[0][1], rank]):
                kind, peer = events.pop(0)
                posted[rank, peer] += kind == "send"
                posted[peer, rank] -= kind == "arrived"
                received[peer, rank] += kind == "receive"
        assert sum(map(len, left.values())) < before, {
            rank: events[0] for rank, events in left.items() if events
        }
    assert not any(posted.values())
    assert set((+received).values()) == {3 * (size - 1)}


def test_the_next_block_is_under_way_while_one_is_computed() -> None:
    first = scripts(4)[0][: 4 * 3 + 1]
    kinds = [kind for kind, _ in first]
    assert kinds == ["receive", "send", "compute", "arrived"] * 3 + ["compute"]
