"""Steps that train slices of heads and width: what a masked model gives, by the bytes said, the same on all ranks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config.validation.rules import problems
from engine.dry_run.pool import build_ranks
from engine.footprint.activations import stage_activations
from engine.footprint.flops import model_flops_per_step, workload_of
from engine.footprint.footprint import parts_of, plan_of
from engine.model.activation_memory import Activations
from engine.model.axes import Axes, LocalExperts
from engine.model.decoder import Block, Decoder, FeedForward, Linear, initialize
from engine.model.linear import RingSlice, ring_slice, sliced_linear
from engine.parallel.context.axis import WholeSequence
from engine.parallel.tensor import TensorParallel
from engine.session import Session
from profilers.model.rows import PartialProductsRow
from tests.engine.model.test_activation_memory import SHAPE
from tests.support.engine.partial_products import check_told
from tests.support.runs import execute, small

TOKENS = torch.arange(64).view(2, 32)


def build(**kept: Any) -> Decoder:
    axes = Axes(TensorParallel(), WholeSequence(), LocalExperts())
    decoder = Decoder(SHAPE, range(SHAPE.layers), axes, sequence_length=32, activations=Activations(**kept))
    initialize(decoder, 0)
    return decoder


def matrices(decoder: Decoder) -> dict[str, Linear]:
    return {name: one for name, one in decoder.named_modules() if isinstance(one, Linear)}


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_loss_and_gradients_are_those_of_a_masked_model(recompute: Any) -> None:
    """Rows and columns that are not in the slice are zero there, and what goes on is divided by the share."""
    sliced, masked = build(sliced=0.5, recompute=recompute), build()
    sliced.begin_micro_batch(3, 0, TOKENS, TOKENS)
    masks = {}
    for (name, one), other in zip(matrices(sliced).items(), matrices(masked).values(), strict=True):
        if one.part is not None:
            masks[name] = torch.zeros_like(one.weight)
            for view in one.part.views(masks[name]):
                view.fill_(one.part.scale)
            with torch.no_grad():
                other.weight.mul_(masks[name])
    assert len(masks) == 7 * SHAPE.layers
    losses = [one.loss(one(TOKENS), TOKENS) for one in (sliced, masked)]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)
    for loss in losses:
        loss.backward()
    for (name, one), other in zip(sliced.named_parameters(), masked.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(
            one.grad, other.grad * masks.get(name.removesuffix(".weight"), 1), atol=1e-7, rtol=1e-4
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("first", [0, 2, 5, 7])
def test_a_product_is_that_of_the_rows_or_columns_taken_out(dtype: torch.dtype, dim: int, first: int) -> None:
    """By indices that go around the end; what is in no slice has a gradient of zero."""
    part = RingSlice(dim, first, 6, 1.5 if dim else 1.0)
    at = torch.arange(first, first + 6) % 8
    weight = torch.randn((8, 5) if dim == 0 else (5, 8), generator=torch.Generator().manual_seed(first))
    x = torch.randn(2, 3, 5 if dim == 0 else 6).to(dtype)
    found, wanted = (
        _gradients(lambda x, w: sliced_linear(x, w, part), x, weight),
        _gradients(lambda x, w: x @ (w.index_select(dim, at) * part.scale).to(dtype).t(), x, weight),
    )
    near = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, **near)
    outside = [row for row in range(8) if row not in at]
    assert not found[2].index_select(dim, torch.tensor(outside)).any()


def _gradients(product: Callable[..., Tensor], x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    found = product(x, weight)
    found.backward(torch.linspace(-1, 1, found.numel()).view(found.shape).to(found.dtype))
    assert x.grad is not None and weight.grad is not None
    return found.detach(), x.grad, weight.grad


def test_every_part_is_in_as_many_slices_and_their_mean_is_all() -> None:
    """Over all places where one may begin; the last ones go around."""
    wide, firsts = torch.arange(1.0, 13.0).view(1, 12), set()
    total = torch.zeros_like(wide)
    for step in range(200):
        part = ring_slice(4, 0.75, 1, 3, (0, step))
        assert part is not None and sum(view.shape[1] for view in part.views(wide)) == 9
        if part.first not in firsts:
            firsts.add(part.first)
            for view, into in zip(part.views(wide), part.views(total), strict=True):
                into.add_(part.scale * view / 4)
    assert firsts == {0, 3, 6, 9}
    assert torch.allclose(total, wide)
    assert ring_slice(4, 1.0, 1, 3, (0,)) is None


def test_slices_follow_steps_and_evaluation_sees_all() -> None:
    decoder, whole = build(sliced=0.5), build()
    seen = set()
    for step in range(12):
        decoder.begin_micro_batch(step, 1, TOKENS, TOKENS)
        block = decoder.blocks["0"]
        assert isinstance(block, Block) and isinstance(block.feed_forward, FeedForward)
        parts = block.attention.query.part, block.attention.key.part, block.feed_forward.gate.part
        assert all(parts)
        seen.add(parts)
        assert parts[0] == parts[1]._replace(first=2 * parts[1].first, length=2 * parts[1].length)
        assert block.feed_forward.down.part == parts[2]._replace(dim=1, scale=2.0)
    assert len(seen) > 6
    with torch.no_grad():
        assert torch.equal(decoder(TOKENS), whole(TOKENS))
    decoder.keep(Activations())
    assert torch.equal(decoder(TOKENS), whole(TOKENS))


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16, selective": {"memory__recompute": "selective", "precision": "bf16"},
    "tp": {"parallel__tp": 2},
    "ring": {"parallel__cp": 2},
    "experts": {"model__experts": 4},
    "one head": {"train__slice_keep": 0.125},
    "one head, selective": {"train__slice_keep": 0.125, "memory__recompute": "selective"},
}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_a_built_rank_keeps_the_bytes_of_the_formula(values: dict[str, Any]) -> None:
    spared = []
    for keep in ({"train__slice_keep": 1.0}, {}):
        fixed = {"model__heads": 8, "model__kv_heads": 8, "batch__micro_batch": 2, "model__layers": 4}
        config = small(**({"train__slice_keep": 0.5} | fixed | values | keep))
        (built,) = build_ranks(config, [0])[0]
        spared.append(
            (built.activations.device, stage_activations(config, parts_of(config, plan_of(config))[0]).device)
        )
    counted, said = (whole - part for whole, part in zip(*spared, strict=True))
    assert counted == pytest.approx(said, rel=0.01) and counted > 0


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        ({"train__slice_keep": 0.7}, " it keeps no whole number; nearest legal: 0.75"),
        ({"parallel__tp": 4}, " it keeps no whole number; nearest legal: 1"),
        ({"compile": True}, "set compile to false, or this to 1"),
        ({"model__layer_groups": 1}, "leave out model.layer_groups, or this to 1"),
        ({"memory__sample_tokens": 0.3}, "set memory.sample_tokens to 1, or this to 1"),
        ({"parallel__pp": 2, "schedule__kind": "zb_h1"}, "set schedule.kind to 1f1b, or this to 1"),
        (
            {"parallel__cp": 2, "parallel__cp_method": "ulysses", "train__slice_keep": 0.7},
            " it keeps no whole number; nearest legal: 0.5",
        ),
    ],
)
def test_what_cannot_be_sliced_is_refused(values: dict[str, Any], remedy: str) -> None:
    (problem,) = problems(small(**{"train__slice_keep": 0.5, "model__kv_heads": 4} | values))
    assert problem.field == "train.slice_keep"
    assert problem.remedy.endswith(remedy)


def test_what_is_advised_is_accepted() -> None:
    """Of whatever sizes, typed as it is printed."""
    numbers, advised = random.Random(3), set[float]()
    for _ in range(400):
        kv_heads, tp = numbers.choice([1, 2, 3, 4, 6, 7, 12]), numbers.choice([1, 1, 2, 3])
        heads = {"model__kv_heads": kv_heads, "model__heads": kv_heads, "model__hidden": 8 * kv_heads}
        cp = numbers.choice([{}, {"parallel__cp": 2, "parallel__cp_method": "ulysses"}])
        width = numbers.choice([61, 66, 96, 6 * 7 * 12, 28_672, 3 * 4_096])
        keep = numbers.choice([0.1, 0.333, 0.5, 0.67, 0.9, 0.99])
        sizes = heads | {"model__ffn_hidden": width, "model__vocabulary": 504, "data__sequence_length": 96}
        config = small(**sizes, **cp, parallel__tp=tp, train__slice_keep=keep)
        for problem in problems(config):
            if problem.field == "train.slice_keep":
                told = float(problem.remedy.rpartition(" ")[2])
                again = problems(config.with_values({"train.slice_keep": told}))
                assert "train.slice_keep" not in [one.field for one in again], (problem, told)
                advised.add(told)
    assert len(advised) > 10
    for share in (0.666667, 0.333333):
        sizes = {"model__heads": 3, "model__kv_heads": 3, "model__hidden": 24, "model__ffn_hidden": 96}
        assert not list(problems(small(**sizes, train__slice_keep=share)))


def test_two_ranks_learn_what_one_does(session: Session) -> None:
    """With buckets of which some hold slices of matrices alone; what they send is compared with formulas elsewhere."""
    values = {"model__kv_heads": 4, "train__steps": 6, "batch__micro_batch": 1, "overlap__bucket_mb": 0.2}
    losses, told = [], list[PartialProductsRow | None]()
    for dp, stage, keep in ((1, 0, 0.5), (2, 0, 0.5), (2, 3, 0.5), (2, 0, 1.0)):
        config = small(**values, parallel__dp=dp, parallel__zero_stage=stage, train__slice_keep=keep)
        outcome, summary = execute(session, config)
        assert outcome.good, outcome
        losses.append(summary.validation_loss)
        told.append(summary.partial_products)
    assert told[0] == told[1] == told[2] and told[3] is None
    check_told(told[0], "train.slice_keep", small(**values, train__slice_keep=0.5))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)
    assert losses[3] != pytest.approx(losses[0], rel=1e-4)


def test_flops_are_those_of_the_slice() -> None:
    """All of a dense block's products scale; logits do not."""
    whole, half = (workload_of(small(model__kv_heads=4, train__slice_keep=keep)) for keep in (1.0, 0.5))
    logits = 6 * whole.tokens * whole.shape.vocabulary * whole.shape.hidden
    blocks = model_flops_per_step(whole) - logits
    assert model_flops_per_step(half) - logits == blocks // 2
