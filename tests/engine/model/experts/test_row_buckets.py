"""Buckets of rows: as many as asked for, none across experts, exact where each has one row; and their gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.config.formulas.expert_rows import bucket_count, row_share, rows_sent
from engine.config.run_config import parse
from engine.model.experts.row_buckets import HASHES, WIDTH, Buckets, RowBuckets, bucket_rows, directions
from tests.support.engine.mixtures import activations, mixture

ROWS, WIDE = 96, 16
COUNTS = torch.tensor([10, 0, 50, 1, 35])
EXPERT = torch.arange(5).repeat_interleave(COUNTS)


def rows(seed: int = 0, kinds: int = 12) -> Tensor:
    """Around so many points, so that some are alike."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(kinds, WIDE, generator=generator) + 3
    near = 0.1 * torch.randn(ROWS, WIDE, generator=generator)
    return points[torch.randint(kinds, (ROWS,), generator=generator)] + near


def made(x: Tensor, into: int, seed: int = 0) -> tuple[Buckets, Tensor]:
    return bucket_rows(x, COUNTS, into, directions(WIDE, seed))


@pytest.mark.parametrize("into", [5, 6, 17, 60, 95, ROWS])
def test_there_are_as_many_as_asked_for_and_none_has_rows_of_two_experts(into: int) -> None:
    buckets, own = made(rows(), into)
    assert len(buckets.sizes) == into == int(own.sum())
    assert torch.equal(buckets.sizes, torch.bincount(buckets.bucket_of_row, minlength=into))
    assert int(buckets.sizes.min()) > 0
    assert not own[1], "an expert without rows has no bucket"
    assert torch.equal(torch.arange(5).repeat_interleave(own)[buckets.bucket_of_row], EXPERT)
    firsts = [buckets.bucket_of_row.tolist().index(number) for number in range(into)]
    assert firsts == sorted(firsts)


def test_the_mean_is_that_of_a_loop_over_rows() -> None:
    x = rows()
    buckets, _ = made(x, 20)
    for number in range(20):
        torch.testing.assert_close(buckets.means(x)[number], x[buckets.bucket_of_row == number].mean(dim=0))


def test_rows_that_are_alike_come_together_and_more_buckets_lie_nearer() -> None:
    x = rows(kinds=8)
    apart = [
        buckets.distances(x, buckets.means(x)).square().sum()
        for buckets, _ in (made(x, into) for into in (5, 30, 60))
    ]
    shuffled = x[torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))]
    chance, _ = made(shuffled, 30)
    by_chance = chance.distances(x, chance.means(x)).square().sum()
    assert apart[0] > apart[1] > apart[2]
    assert apart[1] < 0.2 * by_chance


def test_equal_rows_are_split_where_buckets_are_left_over() -> None:
    buckets, _ = made(torch.ones(ROWS, WIDE), 40)
    assert len(buckets.sizes) == 40


def test_directions_are_those_of_the_seed_and_stand_at_right_angles() -> None:
    one = directions(WIDE, 3)
    assert torch.equal(one, directions(WIDE, 3))
    assert not torch.equal(one, directions(WIDE, 4))
    for turned in one.view(HASHES, WIDTH, WIDE):
        torch.testing.assert_close(turned @ turned.t(), torch.eye(WIDTH), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("parts", [1, 2])
def test_buckets_of_one_row_give_the_same_bits(dtype: torch.dtype, parts: int) -> None:
    x = rows(kinds=ROWS).to(dtype)
    weight = torch.randn(WIDE, WIDE, generator=torch.Generator().manual_seed(1)).to(dtype)

    def gradients(run: RowBuckets | None) -> tuple[Tensor, ...]:
        mine, matrix = x.clone().requires_grad_(), weight.clone().requires_grad_()
        out = (
            run.run(mine, COUNTS, lambda few, _: (few @ matrix).tanh(), True)
            if run
            else (mine @ matrix).tanh()
        )
        out.square().sum().backward()
        assert mine.grad is not None and matrix.grad is not None
        return out.detach(), mine.grad, matrix.grad

    run = RowBuckets(1.0, True, directions(WIDE, 0), parts)
    for found, expected in zip(gradients(run), gradients(None), strict=True):
        assert torch.equal(found, expected)
    assert run.last is not None
    assert torch.equal(run.last, torch.stack((COUNTS.double(), torch.zeros(5).double())))


@pytest.mark.parametrize("adds", [True, False])
def test_gradients_are_those_of_the_formula(adds: bool) -> None:
    """E(c) + x - c of each row, by autograd through a matrix of means."""
    x, weight = rows().double(), torch.randn(WIDE, WIDE, dtype=torch.float64)
    run = RowBuckets(0.3, adds, directions(WIDE, 0))
    buckets, _ = made(x.float(), bucket_count(ROWS, 5, 0.3))
    same = torch.nn.functional.one_hot(buckets.bucket_of_row).double()
    averages = (same / same.sum(dim=0)).t()
    mine, plain = (x.float().requires_grad_() for _ in range(2))
    target = torch.randn(ROWS, WIDE, generator=torch.Generator().manual_seed(2))
    out = run.run(mine, COUNTS, lambda few, _: (few @ weight.float()).tanh(), False)
    centers = averages.float() @ plain
    expected = (centers @ weight.float()).tanh()[buckets.bucket_of_row] + (
        plain - centers[buckets.bucket_of_row] if adds else 0.0
    )
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    (found,), (wanted,) = (
        torch.autograd.grad((one * target).sum(), [of]) for one, of in ((out, mine), (expected, plain))
    )
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_what_is_told_of_a_forward_is_what_became_of_its_rows() -> None:
    x = rows()
    run = RowBuckets(0.3, True, directions(WIDE, 0))
    run.run(x, COUNTS, lambda few, _: few, True)
    buckets, own = made(x, bucket_count(ROWS, 5, 0.3))
    apart = [
        float((x[i] - x[buckets.bucket_of_row == buckets.bucket_of_row[i]].mean(dim=0)).norm() / x[i].norm())
        for i in range(ROWS)
    ]
    assert run.last is not None
    assert torch.equal(run.last[0], own.double())
    expected = [sum(one for one, e in zip(apart, EXPERT, strict=True) if e == number) for number in range(5)]
    torch.testing.assert_close(run.last[1], torch.tensor(expected).double(), atol=1e-4, rtol=1e-4)
    run.run(x, COUNTS, lambda few, _: few, False)
    assert run.last is None


def test_a_mixture_sends_less_in_training_alone() -> None:
    module, x = mixture(), activations()
    plain = module(x)
    module.buckets = RowBuckets(0.3, True, directions(module.shape.hidden, 0))
    assert not torch.allclose(module(x), plain)
    with torch.no_grad():
        assert torch.equal(module(x), plain)


def test_the_rate_is_that_of_the_bytes() -> None:
    base = {"model": {"hidden": 128, "heads": 4, "kv_heads": 4, "experts": 8}, "parallel": {"dp": 2, "ep": 2}}
    lsh = parse(base).with_values({"compression.experts": "lsh", "compression.expert_rate": 0.13})
    assert rows_sent(lsh, 1000) == 130
    both = lsh.with_values({"compression.experts": "lsh_int8"})
    assert row_share(both) == pytest.approx(0.13 * 512 / 132)
    assert rows_sent(both, 1000) == 504
    assert rows_sent(lsh.with_values({"compression.experts": "int8"}), 1000) == 1000
    assert bucket_count(10, 8, 0.01) == 8
    assert bucket_count(3, 8, 0.01) == 3
