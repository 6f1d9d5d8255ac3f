"""The grouped GEMM against a loop over groups, with empty groups and odd widths."""

from __future__ import annotations

import math

import pytest
import torch

from engine.model.experts.dispatch import (
    _ZeroWhereEmpty,
    batched_linear,
    grouped_linear,
    has_grouped_gemm,
    looped_linear,
)
from tests.support.engine.mixtures import CLOSE

COUNTS = [[3, 4, 5], [0, 7, 5], [12, 0, 0], [0, 0, 12], [0, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("widths", [(16, 24), (10, 6)], ids=["aligned", "odd"])
def test_grouped_product_equals_the_loop(
    dtype: torch.dtype, counts: list[int], widths: tuple[int, int]
) -> None:
    rows = sum(counts)
    x = torch.randn(rows, widths[0], dtype=dtype, requires_grad=True)
    weight = torch.randn(3, widths[1], widths[0], dtype=dtype, requires_grad=True)
    assert has_grouped_gemm(x, weight) == (widths == (16, 24) and rows > 0)
    target = torch.randn(rows, widths[1], dtype=dtype)
    grouped, looped = (f(x, weight, torch.tensor(counts)) for f in (grouped_linear, looped_linear))
    close = CLOSE if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(grouped, looped, **close)
    for out in (grouped, looped):
        assert out.shape == (rows, widths[1])
    mine, theirs = (torch.autograd.grad((out * target).sum(), (x, weight)) for out in (grouped, looped))
    torch.testing.assert_close(mine, theirs, **close)
    empty = torch.tensor(counts) == 0
    assert not mine[1][empty].any()


def test_the_gradient_of_a_plain_sum_reaches_the_grouped_product() -> None:
    x, weight = torch.randn(6, 8), torch.randn(2, 4, 8, requires_grad=True)
    counts = torch.tensor([2, 4])
    assert has_grouped_gemm(x, weight)
    grouped, looped = (
        torch.autograd.grad(f(x, weight, counts).sum(), weight)[0] for f in (grouped_linear, looped_linear)
    )
    torch.testing.assert_close(grouped, looped, **CLOSE)


def test_batched_product_equals_the_loop() -> None:
    x = torch.randn(3, 5, 16, requires_grad=True)
    weight = torch.randn(3, 24, 16, requires_grad=True)
    target = torch.randn(3, 5, 24)
    batched = batched_linear(x, weight)
    looped = looped_linear(x.flatten(0, 1), weight, torch.tensor([5, 5, 5])).view_as(batched)
    torch.testing.assert_close(batched, looped, **CLOSE)
    mine, theirs = (torch.autograd.grad((out * target).sum(), (x, weight)) for out in (batched, looped))
    torch.testing.assert_close(mine, theirs, **CLOSE)
    assert mine[1].is_contiguous()


def test_garbage_in_the_gradient_of_an_empty_group_becomes_zero() -> None:
    weight = torch.randn(3, 4, 8, requires_grad=True)
    out = _ZeroWhereEmpty.apply(weight, torch.tensor([2, 0, 1]))
    garbage = torch.ones_like(weight)
    garbage[1] = math.nan
    out.backward(garbage)
    assert weight.grad is not None
    assert weight.grad.flatten(1).sum(dim=1).tolist() == [32.0, 0.0, 32.0]
