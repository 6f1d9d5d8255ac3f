"""A mixture of experts in one process: against a formula for each token, and where a layer may go wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from engine.model.experts.mixture import ExpertLoad, Mixture, MixtureReport
from tests.support.engine.mixtures import (
    BATCH,
    CLOSE,
    SEQUENCE,
    SHAPE,
    OtherRanks,
    Part,
    activations,
    assert_same,
    gradients,
    mixture,
)


def by_token(module: Mixture, x: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Output and balancing loss, one token and one expert after the other; ``kept`` [tokens, top_k]."""
    shape, tokens = module.shape, x.flatten(0, 1)
    probabilities = (tokens @ module.router.weight.t()).softmax(dim=-1)
    shares = torch.zeros(shape.experts)
    outputs = []
    for number, token in enumerate(tokens):
        best, chosen = probabilities[number].sort(descending=True)
        best, chosen = best[: shape.top_k], chosen[: shape.top_k]
        weights = best / best.sum() if shape.top_k > 1 else best
        out = torch.zeros_like(token)
        for place, expert in enumerate(chosen.tolist()):
            shares[expert] += 1 / (shape.top_k * len(tokens))
            if kept is None or kept[number, place]:
                gate, up, down = (getattr(module, name).weight[expert] for name in ("gate", "up", "down"))
                out = out + weights[place] * (down @ (F.silu(gate @ token) * (up @ token)))
        outputs.append(out)
    loss = shape.balance_weight * shape.experts * (shares * probabilities.mean(dim=0)).sum()
    return torch.stack(outputs).view_as(x), loss


@pytest.mark.parametrize("top_k", [1, 2, 3, 6])
@pytest.mark.parametrize("balance_weight", [0.0, 0.5])
def test_output_and_gradients_are_the_formulas(top_k: int, balance_weight: float) -> None:
    module = mixture(replace(SHAPE, top_k=top_k, balance_weight=balance_weight))
    module.balance_scale = 0.25
    x = activations().requires_grad_()
    target = activations(2)
    out = module(x)
    expected, loss = by_token(module, x)
    torch.testing.assert_close(out, expected, **CLOSE)
    assert module.report is not None
    if balance_weight:
        torch.testing.assert_close(module.report.balance_loss, loss.detach())
    else:
        assert module.report.balance_loss is None
    wanted = gradients(module, x, (expected * target).sum() + 0.25 * loss)
    assert_same(gradients(module, x, (out * target).sum()), wanted)


@pytest.mark.parametrize("factor", [0.3, 0.7, 1.0, 1.25])
def test_capacity_drops_late_tokens_and_second_choices_first(factor: float) -> None:
    module = mixture(replace(SHAPE, capacity_factor=factor, balance_weight=0.5))
    x = activations().requires_grad_()
    target = activations(2)
    chosen = module.router(x.flatten(0, 1)).experts
    free = [math.ceil(factor * SEQUENCE * BATCH * 2 / 6)] * 6
    kept = torch.zeros_like(chosen, dtype=torch.bool)
    for place in range(2):
        for token, expert in enumerate(chosen[:, place].tolist()):
            kept[token, place] = free[expert] > 0
            free[expert] -= 1
    assert bool(kept.all()) == (factor > 1.0), "a factor should test both"
    out = module(x)
    expected, loss = by_token(module, x, kept)
    torch.testing.assert_close(out, expected, **CLOSE)
    wanted = gradients(module, x, (expected * target).sum() + loss)
    assert_same(gradients(module, x, (out * target).sum()), wanted)
    assert module.report is not None and module.report.dropped_share is not None
    assert float(module.report.dropped_share) == pytest.approx(1 - float(kept.float().mean()), abs=1e-6)


def test_capacity_is_rounded_up_and_never_more_than_the_tokens() -> None:
    shape = replace(SHAPE, experts=8, capacity_factor=1.25)
    assert shape.capacity(64) == 20
    assert shape.capacity(65) == 21
    assert replace(shape, capacity_factor=100.0).capacity(64) == 64
    assert replace(shape, experts=2, capacity_factor=1.1).capacity(10) == 10
    assert replace(shape, experts=4, top_k=4, capacity_factor=1.1).capacity(100) == 100
    assert replace(shape, experts=20, top_k=2, capacity_factor=1.1).capacity(100) == 11
    assert replace(shape, capacity_factor=None).capacity(64) is None


def test_groups_drop_as_separate_batches_would() -> None:
    shape = replace(SHAPE, capacity_factor=0.7, balance_weight=0.0)
    module, x = mixture(shape), activations()
    apart = [module(x[:, i : i + 1]) for i in range(BATCH)]
    together = module(x)
    module.token_groups = torch.arange(BATCH).expand(SEQUENCE, BATCH)
    torch.testing.assert_close(module(x), torch.cat(apart, dim=1), **CLOSE)
    assert not torch.allclose(together, torch.cat(apart, dim=1), **CLOSE)


@pytest.mark.parametrize("factor", [None, 1.0])
def test_experts_without_tokens_get_zero_gradients(factor: float | None) -> None:
    module = mixture(replace(SHAPE, capacity_factor=factor))
    with torch.no_grad():
        module.router.weight[2:] = 0.0
        module.router.weight[:2] = 10.0
    module(activations().abs()).square().sum().backward()
    assert module.report is not None
    assert module.report.tokens_per_expert.tolist() == [SEQUENCE * BATCH] * 2 + [0] * 4
    for part in (module.gate, module.up, module.down):
        assert part.weight.grad is not None
        assert part.weight.grad[:2].any()
        assert not part.weight.grad[2:].any()


def test_even_routing_has_a_loss_of_its_weight() -> None:
    module = mixture(replace(SHAPE, top_k=6, balance_weight=0.03))
    with torch.no_grad():
        module.router.weight.zero_()
    module(activations().requires_grad_())
    assert module.report is not None and module.report.balance_loss is not None
    assert float(module.report.balance_loss) == pytest.approx(0.03)


@pytest.mark.parametrize("factor", [None, 0.7])
def test_recomputed_activations_count_the_loss_once(factor: float | None) -> None:
    module = mixture(replace(SHAPE, balance_weight=0.5, capacity_factor=factor))
    x = activations().requires_grad_()
    kept = gradients(module, x, module(x).square().sum())
    again = gradients(module, x, checkpoint(module, x, use_reentrant=False).square().sum())
    assert all(torch.equal(kept[name], again[name]) for name in kept)


@pytest.mark.drawn(1)
@pytest.mark.filterwarnings("ignore")  # Dynamo warns about what it does itself
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("factor", [None, 0.7])
def test_compiled_code_computes_the_same(factor: float | None, dtype: torch.dtype) -> None:
    module = mixture(replace(SHAPE, balance_weight=5.0, capacity_factor=factor))
    x = activations().to(dtype).requires_grad_()
    eager = gradients(module, x, module(x).float().mean())
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="aot_eager")
    assert_same(gradients(module, x, compiled(x).float().mean()), eager)


def test_evaluation_asks_no_other_rank() -> None:
    others: Any = OtherRanks(torch.ones(6, dtype=torch.int64))
    module = mixture(data=others)
    with torch.no_grad():
        quiet = module(activations())
    assert others.calls == 0
    loud = module(activations())
    assert others.calls == 1
    assert torch.equal(quiet, loud)


def test_the_router_learns_with_one_expert_a_token() -> None:
    module = mixture(replace(SHAPE, top_k=1, balance_weight=0.0))
    module(activations()).square().sum().backward()
    assert module.router.weight.grad is not None
    assert float(module.router.weight.grad.norm()) > 1e-3


@pytest.mark.parametrize("factor", [None, 0.7])
def test_slices_over_tensor_parallel_add_up(factor: float | None) -> None:
    shape = replace(SHAPE, balance_weight=0.5, capacity_factor=factor)
    x, target = activations().requires_grad_(), activations(2)
    whole, slices = mixture(shape), [mixture(shape, tp=Part(2, rank)) for rank in range(2)]
    outs = [module(x) for module in (whole, *slices)]
    torch.testing.assert_close(outs[1] + outs[2], outs[0], **CLOSE)
    expected, first, second = (
        gradients(module, x, (out * target).sum()) for module, out in zip((whole, *slices), outs, strict=True)
    )
    joined = {name: first[name] + second[name] for name in ("x", "router.weight")}
    for name, dim in (("gate", 1), ("up", 1), ("down", 2)):
        joined[f"{name}.weight"] = torch.cat((first[f"{name}.weight"], second[f"{name}.weight"]), dim)
    assert_same(joined, expected)


def test_every_layout_starts_from_the_same_values() -> None:
    whole = mixture()
    for name, dim in (("gate", 1), ("up", 1), ("down", 2)):
        rows = [
            torch.cat([getattr(mixture(tp=Part(2, t), ep=Part(3, e)), name).weight for t in range(2)], dim)
            for e in range(3)
        ]
        assert torch.equal(torch.cat(rows), getattr(whole, name).weight)
    more = mixture(replace(SHAPE, experts=8))
    assert torch.equal(more.gate.weight[:6], whole.gate.weight)
    flat = whole.gate.weight.detach().flatten(1)
    assert float(torch.corrcoef(flat).fill_diagonal_(0.0).abs().max()) < 0.3


def test_parameters_are_tagged_with_what_splits_them() -> None:
    module = mixture(tp=Part(2, 0), ep=Part(3, 0))
    tags = {
        name: (part.tp_dim, getattr(part, "expert_dim", None), list(part.weight.shape))
        for name, part in module.named_children()
    }
    assert tags == {
        "router": (None, None, [6, 16]),
        "gate": (1, 0, [2, 12, 16]),
        "up": (1, 0, [2, 12, 16]),
        "down": (2, 0, [2, 16, 12]),
    }


@pytest.mark.parametrize("factor", [None, 1.0])
def test_bf16_activations_are_close_to_fp32(factor: float | None) -> None:
    module = mixture(replace(SHAPE, capacity_factor=factor))
    x = activations().bfloat16().requires_grad_()
    assert module.router(x.flatten(0, 1)).probabilities.dtype == torch.float32
    out, expected = module(x), module(x.float())
    assert out.dtype == torch.bfloat16
    mine = gradients(module, x, out.float().square().sum()) | {"out": out.detach()}
    wanted = gradients(module, x, expected.square().sum()) | {"out": expected.detach()}
    for name, value in mine.items():
        error = (value.float() - wanted[name].float()).norm() / wanted[name].float().norm()
        assert float(error) < 0.03, name
    assert {value.dtype for name, value in mine.items() if name.endswith("weight")} == {torch.float32}


def test_a_load_s_mean_probability_is_over_tokens_not_over_micro_batches() -> None:
    load = ExpertLoad()
    load.on = True
    for counts, probability in (([30, 10], [0.7, 0.3]), ([0, 2], [0.1, 0.9])):
        load.add(MixtureReport(None, torch.tensor(counts), None, torch.tensor(probability)))
    sums = load.take()
    assert sums is not None and load.take() is None
    assert sums[0].tolist() == [30, 12]
    assert (sums[2] / sums[0].sum()).tolist() == pytest.approx(
        [(40 * 0.7 + 2 * 0.1) / 42, (40 * 0.3 + 2 * 0.9) / 42]
    )
