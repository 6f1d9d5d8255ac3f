"""Gradients from a sample of the tokens: right in the mean, calmer than plain sampling, with the bytes said."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config.validation.rules import problems
from engine.dry_run.pool import build_ranks
from engine.footprint.activations import SLOTS, count_sampled_rows, remembered_bytes, stage_activations
from engine.footprint.footprint import largest, parts_of, plan_of
from engine.lifecycle import _partial_products
from engine.model.activation_memory import Activations
from engine.model.axes import Axes, LocalExperts
from engine.model.decoder import Decoder, Linear, initialize
from engine.model.linear import DeferredGradients
from engine.model.row_sampling import RowSampler, SampledProducts, pick
from engine.model.workloads.text import DecoderBlueprint
from engine.parallel.build import single_rank_axes
from engine.parallel.context.axis import WholeSequence
from engine.parallel.tensor import TensorParallel
from engine.session import Session
from tests.engine.model.test_activation_memory import SHAPE
from tests.support.engine.partial_products import check_told
from tests.support.runs import execute, small

ROWS, KEPT, DRAWS = 40, 12, 10_000


def probabilities(spread: float) -> Tensor:
    weights = (spread * torch.randn(ROWS, generator=torch.Generator().manual_seed(7))).exp()
    return weights / weights.sum()


def outer_products() -> Tensor:
    """Of each row: [rows, 4, 5]."""
    random = torch.Generator().manual_seed(1)
    left, right = torch.randn(ROWS, 4, generator=random), torch.randn(ROWS, 5, generator=random)
    return torch.einsum("ri,rj->rij", left, right)


def estimates(likely: Tensor, products: Tensor, draws: int = DRAWS) -> Tensor:
    """Of so many draws the estimated sum: [draws, 4, 5]."""
    random = torch.Generator().manual_seed(3)
    picked = [pick(likely, KEPT, random) for _ in range(draws)]
    places, weights = (torch.stack(one) for one in zip(*picked, strict=True))
    return torch.einsum("dk,dkij->dij", weights, products[places])


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_the_mean_of_many_draws_is_the_exact_product(spread: float) -> None:
    """All elements at once within bounds that all keep 95 times in 100; the draws are the same each time."""
    products = outer_products()
    found = estimates(probabilities(spread), products)
    bound = NormalDist().inv_cdf(1 - 0.05 / 2 / products[0].numel())
    off = (found.mean(dim=0) - products.sum(dim=0)).abs()
    assert torch.all(off <= bound * found.std(dim=0) / DRAWS**0.5 + 1e-6)
    assert spread == 3.0 or found.std(dim=0).min() > 0.1


def test_certain_rows_count_as_they_are_and_others_scatter_less_than_plainly_drawn_ones() -> None:
    likely = probabilities(2.0)
    heavy = outer_products() * (ROWS * likely)[:, None, None]
    picked = pick(likely, KEPT, torch.Generator().manual_seed(0))
    certain = picked.weights == 1
    assert 0 < certain.sum() < KEPT
    assert set(picked.places[certain].tolist()) == set(likely.topk(int(certain.sum())).indices.tolist())
    best, plain = estimates(likely, heavy, 2_000), estimates(torch.full((ROWS,), 1 / ROWS), heavy, 2_000)
    independent = torch.multinomial(likely, 2_000 * KEPT, True, generator=torch.Generator().manual_seed(5))
    drawn = (heavy / likely[:, None, None] / KEPT)[independent].view(2_000, KEPT, 4, 5).sum(dim=1)
    assert best.var(dim=0).sum() < 0.2 * plain.var(dim=0).sum()
    assert best.var(dim=0).sum() < 0.5 * drawn.var(dim=0).sum()


def products_of(
    share: float, deferred: DeferredGradients | None = None
) -> tuple[SampledProducts, list[Linear], Tensor]:
    torch.manual_seed(0)
    matrices = [Linear(6, 5, TensorParallel(), None), Linear(3, 5, TensorParallel(), None)]
    for matrix in matrices:
        matrix.deferred = deferred
        torch.nn.init.normal_(matrix.weight)
    return SampledProducts(RowSampler(share, 0, 0), 0), matrices, torch.randn(8, 4, 5)


def gradients_of(share: float, passes: int = 1, deferred: DeferredGradients | None = None) -> list[Tensor]:
    """Of the input and both matrices, in the last of some passes."""
    sampled, matrices, x = products_of(share, deferred)
    tokens = torch.arange(32).view(4, 8)
    wanted = torch.randn(32, 6, generator=torch.Generator().manual_seed(2))
    wanted *= (1 + 99 * (torch.arange(32) % 3 == 0)).unsqueeze(1)
    for step in range(passes):
        x = x.detach().requires_grad_(True)
        for matrix in matrices:
            matrix.weight.grad = None
        sampled.sampler.begin_micro_batch(step, 0, tokens)
        first, second = sampled.products(x, matrices, sampled.sampler.slots)
        (first.flatten(0, 1) * wanted).sum().add(0.1 * second.sum()).backward()
    assert x.grad is not None
    if deferred is not None:
        return [x.grad, *(product for _, product in deferred.products((0, 0)))]
    return [x.grad, *(matrix.weight.grad for matrix in matrices if matrix.weight.grad is not None)]


def test_what_goes_back_is_exact_and_norms_are_remembered() -> None:
    exact, first, second = gradients_of(1.0), gradients_of(0.5), gradients_of(0.5, passes=20)
    assert torch.equal(first[0], exact[0]) and torch.equal(second[0], exact[0])
    off = [float((one[1] - exact[1]).norm()) for one in (first, second)]
    assert off[0] > 0 and off[1] < 0.25 * off[0], "rows with large gradients are certain once they were seen"
    sampled = products_of(0.5)[0]
    slots = torch.tensor([3, 3, SLOTS - 1])
    sampled.remember(slots, torch.tensor([1.0, 2.0, 9.0]))
    assert sampled._norms is not None
    assert sampled._norms[[3, SLOTS - 1, 0]].tolist() == pytest.approx([4 - 0.1 * (3 + 2) / 1.1, 4.5, 4])


def test_a_split_backward_takes_the_same_gradients_later() -> None:
    deferred = DeferredGradients()
    deferred.key = (0, 0)
    now, late = gradients_of(0.5), gradients_of(0.5, deferred=deferred)
    assert len(now) == len(late) == 3
    assert all(torch.equal(*pair) for pair in zip(now, late, strict=True))


def test_all_tokens_are_the_exact_product_and_evaluation_draws_nothing() -> None:
    assert (count_sampled_rows(10, 0.3), count_sampled_rows(10, 0.31), count_sampled_rows(2, 0.01)) == (
        3,
        4,
        1,
    )
    axes = Axes(TensorParallel(), WholeSequence(), LocalExperts())
    tokens = torch.arange(64).view(2, 32)
    found = []
    for share in (1.0, 0.25):
        decoder = Decoder(SHAPE, range(4), axes, sequence_length=32, activations=Activations(sampled=share))
        initialize(decoder, 0)
        decoder.begin_micro_batch(0, 0, tokens, tokens)
        with torch.no_grad():
            silent = decoder(tokens)
        assert torch.equal(decoder(tokens), silent)
        found.append(silent)
    assert torch.equal(*found)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "selective": {"memory__recompute": "selective", "precision": "bf16"},
    "first layers": {"memory__recompute": "full", "memory__recompute_layers": 1},
    "tp": {"parallel__tp": 2},
    "replicated": {
        "parallel__tp": 2,
        "parallel__tp_replicated": ["query_key_value", "attention_output", "down"],
    },
    "ulysses": {"parallel__cp": 2, "parallel__cp_method": "ulysses"},
    "experts": {"model__experts": 4},
    "split backward": {"parallel__pp": 2, "schedule__kind": "zb_h1"},
    "offload": {"memory__offload": "activations"},
}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_a_built_rank_keeps_the_bytes_of_the_formula(values: dict[str, Any]) -> None:
    """With and without: what is spared is that of the formula, to a hundredth."""
    spared = []
    for share in (1.0, 0.3):
        config = small(**values, batch__micro_batch=2, model__layers=4, memory__sample_tokens=share)
        (built,) = build_ranks(config, [0])[0]
        formula = stage_activations(config, parts_of(config, plan_of(config))[built.stage])
        spared.append((built.activations, formula))
    (whole, whole_formula), (part, part_formula) = spared
    counted, said = (
        one.device + one.host - two.device - two.host
        for one, two in ((whole, part), (whole_formula, part_formula))
    )
    assert counted == pytest.approx(said, rel=0.01) and counted > 0
    if whole.waiting:
        waiting = whole_formula.waiting - part_formula.waiting
        assert whole.waiting - part.waiting == pytest.approx(waiting, rel=0.01)
        assert waiting > 0


@pytest.mark.parametrize(
    "values",
    [
        *({}, {"model__experts": 4}, {"memory__recompute": "selective"}),
        {"memory__recompute": "full", "memory__recompute_layers": 1},
        {"memory__block_actions": ["keep", "selective", "full", "offload"]},
    ],
)
def test_norms_that_are_remembered_count_in_memory_and_in_what_is_spared(values: dict[str, Any]) -> None:
    """Against the tables of a decoder that has gone forward and back, beside the sum of the others."""
    config = small(**values, batch__micro_batch=2, model__layers=4, memory__sample_tokens=0.3)
    blueprint = DecoderBlueprint(config)
    decoder = blueprint.stage(range(4), single_rank_axes())
    inputs, targets = blueprint.samples(decoder).training(0, 2)
    decoder.begin_micro_batch(0, 0, inputs, targets)
    decoder.loss(decoder(inputs), targets).backward()
    sampled = [
        one
        for module in decoder.modules()
        for one in vars(module).values()
        if isinstance(one, SampledProducts)
    ]
    norms = sum(one._norms.nbytes for one in sampled if one._norms is not None)
    whole, (part,) = config.with_values({"memory.sample_tokens": 1.0}), parts_of(config, plan_of(config))
    assert norms == remembered_bytes(config, part) > 0 == remembered_bytes(whole, part)
    assert largest(config).buffer_bytes - largest(whole).buffer_bytes == norms
    told, (all_kept, kept) = (
        _partial_products(config),
        (stage_activations(one, part) for one in (whole, config)),
    )
    assert told is not None
    assert told.kept_bytes == kept.device + kept.host + norms
    assert told.whole_bytes == all_kept.device + all_kept.host


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        (
            {"model__workload": "vision"},
            "only the decoder's matrices can; set model.workload to decoder, or this to 1",
        ),
        ({"compile": True}, "set compile to false, or this to 1"),
        (
            {"parallel__tp": 2, "parallel__tp_regather": True},
            "set parallel.tp_regather to false, or this to 1",
        ),
        ({"parallel__tp": 2, "overlap__tp_chunks": 2}, "set overlap.tp_chunks to 1, or this to 1"),
        ({"memory__recompute": "full"}, "no input kept; set memory.recompute to none, or this to 1"),
        ({"memory__budget_gib": 1.0}, "leave out memory.budget_gib, or this to 1"),
    ],
)
def test_what_keeps_all_inputs_or_none_is_refused(values: dict[str, Any], remedy: str) -> None:
    (problem,) = problems(small(**values, memory__sample_tokens=0.3))
    assert (problem.field, problem.value) == ("memory.sample_tokens", 0.3)
    assert problem.remedy.endswith(remedy)


def test_a_run_learns_from_samples_and_draws_the_same_ones_again(session: Session) -> None:
    values = {
        "parallel__pp": 2,
        "parallel__dp": 2,
        "schedule__kind": "zb_h1",
        "train__steps": 6,
        "train__warmup": 0,
    }
    losses = []
    for share in (1.0, 0.5, 0.5):
        config = small(**values, memory__sample_tokens=share)
        outcome, summary = execute(session, config)
        assert outcome.good, outcome
        if share == 1:
            assert summary.partial_products is None
        else:
            check_told(summary.partial_products, "memory.sample_tokens", config)
        losses.append(summary.validation_loss)
    exact, first, second = losses
    assert exact is not None and first is not None
    assert first == second != exact
    assert first == pytest.approx(exact, rel=0.02)
