"""What is trained beside a frozen decoder: its products and gradients, what it keeps, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from engine.config.validation.rules import problems
from engine.dry_run.check import dry_run
from engine.footprint.flops import hardware_flops_per_step, model_flops_per_step, workload_of
from engine.footprint.side_factors import side_factors, side_parameters
from engine.model.decoder import Decoder, Linear
from engine.model.workloads.adapters import LowRank, TokenMixer
from engine.model.workloads.text import DecoderBlueprint
from engine.parallel.build import single_rank_axes
from tests.support.runs import small

LAYERS, LENGTH = 3, 32
TOKENS = torch.arange(2 * LENGTH).view(2, LENGTH)


def config(kind: str, **more: Any) -> Any:
    resume = {} if kind == "none" else {"train__resume": "a-run"}
    sizes = {"model__layers": LAYERS, "data__sequence_length": LENGTH, "train__adapt_rank": 4}
    return small(**{**sizes, **resume, "train__adapt": kind, **more})


def build(kind: str, learned: bool = False) -> Decoder:
    """With ``learned`` what is trained is not what it was at first."""
    decoder = DecoderBlueprint(config(kind)).stage(range(LAYERS), single_rank_axes())
    if learned:
        numbers = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for one in decoder.trained_parameters().values():
                one.normal_(0.0, 0.2, generator=numbers)
    return decoder


def loss_of(decoder: Decoder) -> torch.Tensor:
    return decoder.loss(decoder(TOKENS), TOKENS)


@pytest.mark.parametrize("kind", ["lora", "losa"])
def test_before_training_it_is_the_frozen_model_to_the_bit(kind: str) -> None:
    adapted, plain = build(kind), build("none")
    with torch.no_grad():
        assert torch.equal(adapted(TOKENS), plain(TOKENS))
        assert not torch.equal(build(kind, learned=True)(TOKENS), plain(TOKENS))


@pytest.mark.parametrize("kind", ["lora", "losa"])
def test_only_what_stands_beside_has_gradients_and_all_of_it(kind: str) -> None:
    decoder = build(kind, learned=True)
    loss_of(decoder).backward()
    assert all(one.grad is None for one in decoder.frozen_parameters().values())
    assert all(
        one.grad is not None and one.grad.abs().max() > 0 for one in decoder.trained_parameters().values()
    )
    assert decoder.frozen_parameters().keys() == build("none").model_parameters().keys()
    shapes = [tuple(one.shape) for one in decoder.trained_parameters().values()]
    factors = side_factors(config(kind), range(LAYERS))
    assert shapes == [(one.rows, one.columns) for one in factors]
    assert sum(map(math.prod, shapes)) == side_parameters(config(kind))


def test_gradients_of_factors_are_those_of_the_whole_matrix_by_the_chain_rule() -> None:
    """A plain decoder with the sum as its matrix: dW down^T, and up^T dW."""
    adapted, plain = build("lora", learned=True), build("none")
    both = {name: one for name, one in plain.named_modules() if isinstance(one, Linear)}
    sides = {name: one.side for name, one in adapted.named_modules() if isinstance(one, Linear) and one.side}
    assert len(sides) == 7 * LAYERS
    with torch.no_grad():
        for name, side in sides.items():
            assert isinstance(side, LowRank)
            both[name].weight += side.up @ side.down
    losses = [loss_of(one) for one in (adapted, plain)]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)
    for loss in losses:
        loss.backward()
    for name, side in sides.items():
        assert isinstance(side, LowRank)
        whole = both[name].weight.grad
        assert whole is not None and side.up.grad is not None and side.down.grad is not None
        torch.testing.assert_close(side.up.grad, whole @ side.down.detach().t(), atol=1e-6, rtol=1e-3)
        torch.testing.assert_close(side.down.grad, side.up.detach().t() @ whole, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("looks_back", [True, False])
def test_a_mixer_of_tokens_sums_those_up_to_each_or_all(looks_back: bool) -> None:
    """Term by term, in double precision."""
    mixer = TokenMixer(6, 3, 5, looks_back).double()
    mixer.fill(torch.Generator().manual_seed(1))
    with torch.no_grad():
        mixer.up.normal_()
        x = torch.randn(5, 2, 6, dtype=torch.float64)
        narrow = torch.einsum("sbh,rh->sbr", x, mixer.down)
        for token in range(5):
            total = torch.zeros(2, 3, dtype=torch.float64)
            seen = token + 1 if looks_back else 5
            for other in range(seen):
                weight = sum(float(mixer.writes[token, k] * mixer.reads[other, k]) for k in range(3))
                total += weight / math.sqrt(seen) * narrow[other]
            expected = F.gelu(total) @ mixer.up.t()
            torch.testing.assert_close(mixer(x)[token], expected, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("kind", ["lora", "losa"])
def test_no_token_sees_one_behind_it(kind: str) -> None:
    decoder, changed = build(kind, learned=True), TOKENS.clone()
    changed[:, 20:] += 100
    with torch.no_grad():
        before, after = decoder(TOKENS), decoder(changed)
    assert torch.equal(before[:20], after[:20])
    assert not torch.equal(before[20:], after[20:])


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "values", [{}, {"precision": "bf16"}, {"parallel__dp": 2, "parallel__zero_stage": 1}]
)
@pytest.mark.parametrize("kind", ["lora", "losa"])
def test_a_built_rank_holds_the_bytes_of_the_formula(kind: str, values: dict[str, Any]) -> None:
    found = dry_run(config(kind, **values, batch__micro_batch=2))
    assert found.legal and not found.mismatches
    (built,), (formula,) = found.stages, found.formulas
    assert built.parameter_bytes == formula.parameter_bytes
    assert built.gradient_bytes == formula.gradient_bytes == 4 * side_parameters(config(kind))
    assert built.optimizer_bytes == pytest.approx(formula.optimizer_bytes, rel=0.01)
    assert built.activation_bytes == pytest.approx(formula.activation_bytes, rel=1e-3)


def test_without_a_backward_through_blocks_a_fifth_of_the_activations_is_enough() -> None:
    kept = {
        kind: dry_run(config(kind, batch__micro_batch=2)).stages[0].activation_bytes
        for kind in ("none", "lora", "losa")
    }
    assert kept["losa"] <= 0.2 * kept["none"]
    assert kept["lora"] < kept["none"]


@pytest.mark.parametrize("kind", ["lora", "losa"])
def test_every_product_that_torch_counts_is_in_the_formula(kind: str) -> None:
    step = config(kind, batch__micro_batch=2, batch__global_batch=2)
    decoder = build(kind)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss_of(decoder).backward()
    work = workload_of(step)
    assert counter.get_total_flops() == model_flops_per_step(work) == hardware_flops_per_step(work)
    plain = model_flops_per_step(workload_of(config("none", batch__micro_batch=2, batch__global_batch=2)))
    assert model_flops_per_step(work) < plain


@pytest.mark.parametrize(
    ("values", "field", "remedy"),
    [
        (
            {"train__resume": None},
            "train.adapt",
            "adapts a checkpoint; name one in train.resume, or set this",
        ),
        (
            {"train__adapt_rank": 400},
            "train.adapt_rank",
            "is above hidden=160, the narrowest side; choose at",
        ),
        (
            {"parallel__tp": 2},
            "train.adapt",
            "factors are not split over tp; set parallel.tp to 1, or this to",
        ),
        ({"parallel__pp": 2}, "train.adapt", "stays in one stage; set parallel.pp to 1, or this to none"),
        ({"parallel__cp": 2}, "train.adapt", "sees whole sequences; set parallel.cp to 1, or this to none"),
        ({"parallel__dp": 2, "parallel__zero_stage": 3}, "train.adapt", "set parallel.zero_stage to 0 or 1"),
        ({"model__experts": 4}, "train.adapt", "leave out model.experts, or this to none"),
        ({"compile": True}, "train.adapt", "set compile to false, or this to none"),
        ({"train__optimizer": "muon"}, "train.adapt", "set train.optimizer to adamw, or this to none"),
        ({"memory__recompute": "full"}, "train.adapt", "set memory.recompute to none, or this to none"),
    ],
)
def test_what_cannot_be_adapted_is_refused(values: dict[str, Any], field: str, remedy: str) -> None:
    (problem,) = problems(config("lora", **values))
    assert problem.field == field
    assert remedy in problem.remedy and "\n" not in problem.remedy


def test_a_side_network_of_more_rank_than_tokens_is_refused() -> None:
    (problem,) = problems(config("losa", train__adapt_rank=LENGTH + 1))
    assert problem.remedy.startswith(f"is above sequence_length={LENGTH}")
    (problem,) = problems(config("losa", data__documents="masked"))
    assert "set data.documents to joined, or this to lora" in problem.remedy
