"""The formulas against the papers they follow, against built models, and against torch's own counter."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from engine.config.errors import InputError
from engine.config.presets import PRESETS, ModelShape
from engine.config.run_config import parse
from engine.footprint.flops import (
    CONVENTION,
    Recompute,
    Workload,
    hardware_flops_per_step,
    layer_parameters,
    model_flops_per_step,
    parameters,
    workload_of,
)
from engine.model.activation_memory import Activations
from engine.model.axes import Axes, LocalExperts
from engine.model.decoder import Decoder, Linear, initialize
from engine.model.experts.mixture import MixtureShape
from engine.model.linear import DeferredGradients
from engine.model.workloads.text import DecoderBlueprint
from engine.parallel.build import single_rank_axes
from engine.parallel.context.axis import WholeSequence
from engine.parallel.tensor import TensorParallel
from tests.support.engine.mixtures import mixture
from tests.support.runs import small

aten = torch.ops.aten
#: More are counted without memory: on the meta device.
MOST_REAL_PARAMETERS = 20_000_000
GROUPED = ModelShape(layers=3, hidden=48, heads=6, kv_heads=2, ffn_hidden=40, vocabulary=70)
PLAIN = ModelShape(layers=2, hidden=32, heads=2, kv_heads=2, ffn_hidden=96, vocabulary=33)


def build(work: Workload) -> Decoder:
    shape = work.shape
    return Decoder(
        shape,
        range(shape.layers),
        Axes(TensorParallel(), WholeSequence(), LocalExperts()),
        sequence_length=work.sequence_length,
        activations=Activations(work.recompute, work.recomputed_layers),
    )


def counted(work: Workload, backend: SDPBackend, **kernels: Any) -> tuple[int, int]:
    """FLOPs that torch counts in forward and in backward of a whole step."""
    decoder = build(work)
    initialize(decoder, 0)
    tokens = torch.randint(work.shape.vocabulary, (work.global_batch, work.sequence_length))
    mapping = {getattr(aten, name): formula for name, formula in kernels.items()}
    with sdpa_kernel(backend):
        with FlopCounterMode(display=False, custom_mapping=mapping) as forward:
            loss = decoder(tokens).float().square().mean()
        with FlopCounterMode(display=False, custom_mapping=mapping) as backward:
            loss.backward()
    return forward.get_total_flops(), backward.get_total_flops()


def published_flops(
    batch: int, sequence: int, layers: int, hidden: int, vocabulary: int, recompute: Recompute
) -> int:
    """FLOPs of a step of a GPT (feed-forward 4 h wide) by the formulas as printed, to compare with published runs.

    full: 96 B s l h^2 (1 + s / (6 h) + V / (16 l h)), arXiv 2104.04473, eq. 3; none: the same without the second
    forward pass, 72 B s l h^2 (1 + s / (6 h) + V / (12 l h)); selective: 72 B s l h^2 (1 + s / (3 h) + V / (12 l h)),
    arXiv 2205.05198, appendix A, which adds three times the attention core's forward FLOPs, where recomputing it
    adds them once.
    """
    tokens = batch * sequence
    matrices, attention = {"none": (72, 12), "selective": (72, 24), "full": (96, 16)}[recompute]
    per_layer = matrices * hidden * hidden + attention * sequence * hidden
    return tokens * (layers * per_layer + 6 * vocabulary * hidden)


@pytest.mark.parametrize("shape", [GROUPED, PLAIN], ids=["grouped", "plain"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("layers", [None, 1])
def test_every_matrix_product_that_torch_counts_is_in_the_formula(
    shape: ModelShape, recompute: Recompute, layers: int | None
) -> None:
    work = Workload(shape, 24, 3, recompute, layers)
    forward, backward = counted(work, SDPBackend.MATH)
    assert 3 * forward == model_flops_per_step(work)
    assert forward + backward == hardware_flops_per_step(work)
    assert (recompute != "none") == (hardware_flops_per_step(work) > model_flops_per_step(work))


@pytest.mark.parametrize(
    "values",
    [
        *(
            {},
            {"memory__recompute": "selective"},
            {"memory__recompute": "full", "memory__recompute_layers": 1},
        ),
        {"memory__block_actions": ["keep", "selective", "full", "keep"]},
    ],
)
@pytest.mark.parametrize("part", [{"memory__sample_tokens": 0.3}, {"train__slice_keep": 0.5}])
def test_what_a_step_leaves_out_is_not_counted(part: dict[str, Any], values: dict[str, Any]) -> None:
    """By torch's counter, which does not know sums in place: slices that go around have them. Where tokens are sampled
    the model stays what it is, and hardware does less.
    """

    def added(_: list[int], left: list[int], right: list[int], **__: Any) -> int:
        return 2 * left[0] * left[1] * right[1]

    sizes = {"model__layers": 4, "model__kv_heads": 4, "batch__micro_batch": 2, "batch__global_batch": 2}
    whole = small(**sizes, **values)
    config = small(**sizes, **values, **part)
    blueprint = DecoderBlueprint(config)
    decoder = blueprint.stage(range(4), single_rank_axes())
    inputs, targets = blueprint.samples(decoder).training(0, 2)
    decoder.begin_micro_batch(0, 0, inputs, targets)
    counts = FlopCounterMode(display=False, custom_mapping={aten.addmm_: added})
    with sdpa_kernel(SDPBackend.MATH), counts as counter:
        decoder.loss(decoder(inputs), targets).backward()
    work, all_work = workload_of(config), workload_of(whole)
    assert counter.get_total_flops() == hardware_flops_per_step(work) < hardware_flops_per_step(all_work)
    is_sampled = "memory__sample_tokens" in part
    assert (model_flops_per_step(work) == model_flops_per_step(all_work)) == is_sampled


@pytest.mark.parametrize("axis", ["dp", "tp", "pp"])
def test_ranks_together_leave_out_what_one_does(axis: str) -> None:
    sampled = small(model__layers=4, memory__sample_tokens=0.25, batch__global_batch=16)
    one, two = (workload_of(config) for config in (sampled, sampled.with_values({f"parallel.{axis}": 2})))
    assert one.sampled_flops == two.sampled_flops > 0


def test_gradients_of_matrices_taken_later_cost_full_recomputation_one_product_more() -> None:
    work = Workload(PLAIN, 24, 3, "full", recomputes_whole_block=True)
    decoder, deferred = build(work), DeferredGradients()
    for module in decoder.modules():
        if isinstance(module, Linear):
            module.deferred = deferred
    tokens = torch.zeros(work.global_batch, work.sequence_length, dtype=torch.int64)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = decoder(tokens).square().mean()
        deferred.key = 0, 0
        loss.backward()
        assert len(list(deferred.products((0, 0)))) == 7 * PLAIN.layers + 1
    assert counter.get_total_flops() == hardware_flops_per_step(work)


def _as_many_heads(query: list[int], *others: list[int]) -> list[list[int]]:
    """Shapes of keys and values where each query head has its own: torch 2.11 counts no others."""
    return [[other[0], query[1], *other[2:]] for other in others]


def test_a_fused_attention_kernel_computes_its_scores_once_more() -> None:
    """The one part of real arithmetic that the formulas leave out, as the papers do."""
    work = Workload(GROUPED, sequence_length=24, global_batch=3)

    def once_more(q: list[int], k: list[int], v: list[int], *_: Any, **__: Any) -> int:
        return int(sdpa_flop_count(q, *_as_many_heads(q, k, v)))

    def backwards(gradient: list[int], q: list[int], k: list[int], v: list[int], *_: Any, **__: Any) -> int:
        return int(sdpa_backward_flop_count(gradient, q, *_as_many_heads(q, k, v)))

    forward, backward = counted(
        work,
        SDPBackend.FLASH_ATTENTION,
        _scaled_dot_product_flash_attention_for_cpu=once_more,
        _scaled_dot_product_flash_attention_for_cpu_backward=backwards,
    )
    scores = 2 * work.sequence_length * GROUPED.hidden * work.tokens * GROUPED.layers
    assert 3 * forward == model_flops_per_step(work)
    assert forward + backward == hardware_flops_per_step(work) + scores


@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_are_those_of_the_built_model(preset: str) -> None:
    work = Workload(PRESETS[preset], sequence_length=8, global_batch=1)
    with torch.device("cpu" if parameters(work) <= MOST_REAL_PARAMETERS else "meta"):
        decoder = build(work)
    assert parameters(work) == sum(parameter.numel() for parameter in decoder.parameters())
    assert parameters(work) == work.shape.parameters
    block = sum(parameter.numel() for parameter in decoder.blocks["0"].parameters())
    assert layer_parameters(work) == block == work.shape.layer_parameters


def test_experts_count_where_a_token_meets_them() -> None:
    dense = Workload(GROUPED, sequence_length=24, global_batch=3)
    experts = Workload(GROUPED, 24, 3, experts=8, experts_per_token=2, expert_ffn_hidden=20)
    hidden, layers, expert = GROUPED.hidden, GROUPED.layers, 3 * 48 * 20
    router = 8 * hidden
    without = parameters(dense) - layers * 3 * hidden * GROUPED.ffn_hidden
    assert parameters(experts) == without + layers * (router + 8 * expert)
    difference = model_flops_per_step(experts) - model_flops_per_step(dense)
    assert difference == 6 * dense.tokens * layers * (router + 2 * expert - 3 * hidden * GROUPED.ffn_hidden)


def test_one_expert_for_every_token_is_the_dense_model_and_a_router() -> None:
    dense = Workload(PLAIN, 16, 2)
    single = Workload(PLAIN, 16, 2, experts=1, experts_per_token=1)
    router = PLAIN.layers * PLAIN.hidden
    assert parameters(single) == parameters(dense) + router
    assert model_flops_per_step(single) == model_flops_per_step(dense) + 6 * dense.tokens * router


@pytest.mark.parametrize("capacity_factor", [None, 1.0])
def test_a_mixture_s_products_are_those_of_the_formula(capacity_factor: float | None) -> None:
    """Widths that are no multiple of 16 bytes: torch counts plain products, but no grouped ones."""
    sizes = ModelShape(layers=1, hidden=18, heads=3, kv_heads=3, ffn_hidden=22, vocabulary=33)
    dense, work = Workload(sizes, 8, 3), Workload(sizes, 8, 3, "full", experts=6, experts_per_token=2)
    module = mixture(MixtureShape(18, 22, 6, 2, capacity_factor))
    x = torch.randn(8, 3, 18, requires_grad=True)
    with FlopCounterMode(display=False) as plain:
        module(x).square().mean().backward()
    with FlopCounterMode(display=False) as twice:
        checkpoint(module, x, use_reentrant=False).square().mean().backward()
    feed_forward = 6 * dense.tokens * 3 * 18 * 22
    assert plain.get_total_flops() == model_flops_per_step(work) - model_flops_per_step(dense) + feed_forward
    assert twice.get_total_flops() * 3 == plain.get_total_flops() * 4
    block = model_flops_per_step(work) // 3 - 2 * work.tokens * sizes.vocabulary * sizes.hidden
    assert hardware_flops_per_step(work) - model_flops_per_step(work) == block


def gpt_like(layers: int, width: int, sequence: int, batch: int, vocabulary: int, **kind: Any) -> Workload:
    """Without grouped queries, and with a SwiGLU of 8/3 the width a block has a GPT's 12 h^2 matrix entries."""
    hidden = 6 * width
    shape = ModelShape(layers, hidden, width, width, 8 * hidden // 3, vocabulary)
    return Workload(shape, sequence, batch, **kind)


KINDS: tuple[Recompute, ...] = ("none", "selective", "full")
SIZES = {
    "layers": st.integers(1, 128),
    "width": st.integers(1, 4096),
    "sequence": st.integers(1, 65536),
    "batch": st.integers(1, 4096),
    "vocabulary": st.integers(1, 300_000),
}


@given(**SIZES)
def test_a_gpt_s_formulas_come_out(
    layers: int, width: int, sequence: int, batch: int, vocabulary: int
) -> None:
    work = gpt_like(layers, width, sequence, batch, vocabulary)
    full = gpt_like(layers, width, sequence, batch, vocabulary, recompute="full")
    h = work.shape.hidden
    block, ratio = batch * sequence * layers * h**2, Fraction(vocabulary, layers * h)
    plain = 72 * block * (1 + Fraction(sequence, 6 * h) + ratio / 12)
    twice = 96 * block * (1 + Fraction(sequence, 6 * h) + ratio / 16)
    selective = 72 * block * (1 + Fraction(sequence, 3 * h) + ratio / 12)
    assert model_flops_per_step(work) == model_flops_per_step(full) == hardware_flops_per_step(work) == plain
    last_product = 2 * work.tokens * layers * h * work.shape.ffn_hidden
    assert hardware_flops_per_step(full) == twice - last_product
    printed = [published_flops(batch, sequence, layers, h, vocabulary, kind) for kind in KINDS]
    assert printed == [plain, selective, twice]


@given(**SIZES)
def test_recomputing_the_attention_core_adds_its_forward_once(
    layers: int, width: int, sequence: int, batch: int, vocabulary: int
) -> None:
    work = gpt_like(layers, width, sequence, batch, vocabulary, recompute="selective")
    h = work.shape.hidden
    once = 4 * sequence * h * work.tokens * layers
    assert hardware_flops_per_step(work) == model_flops_per_step(work) + once
    printed = published_flops(batch, sequence, layers, h, vocabulary, "selective")
    assert printed == model_flops_per_step(work) + 3 * once


def test_layers_that_recompute_add_up() -> None:
    kinds = [Workload(GROUPED, 24, 3, recompute="full", recomputed_layers=n) for n in (0, 1, 3, None)]
    extra = [hardware_flops_per_step(work) - model_flops_per_step(work) for work in kinds]
    assert extra[0] == 0
    assert extra[2] == extra[3] == 3 * extra[1] > 0


# Sizes, seconds and utilizations of the 22B, 175B, 530B and 1T runs of arXiv 2205.05198, on A100 of 312 TFLOP/s.
@pytest.mark.parametrize(
    ("layers", "hidden", "gpus", "batch", "seconds", "mfu", "hfu"),
    [
        (48, 6144, 8, 4, 1.10, 0.415, 0.437),
        (96, 12288, 64, 64, 13.75, 0.514, 0.528),
        (105, 20480, 280, 280, 37.83, 0.560, 0.570),
        (128, 25600, 512, 512, 71.49, 0.563, 0.570),
    ],
)
def test_published_utilizations_come_out(
    layers: int, hidden: int, gpus: int, batch: int, seconds: float, mfu: float, hfu: float
) -> None:
    sizes = (batch, 2048, layers, hidden, 51200)
    available = seconds * gpus * 312e12
    assert published_flops(*sizes, "none") / available == pytest.approx(mfu, abs=0.002)
    assert published_flops(*sizes, "selective") / available == pytest.approx(hfu, abs=0.002)


def test_a_configuration_becomes_a_workload() -> None:
    config = parse(
        {"model": {"preset": "1b"}, "data": {"sequence_length": 4096}, "memory": {"recompute": True}}
    )
    work = workload_of(config)
    assert work == Workload(PRESETS["1b"], 4096, 48, "full")
    assert work.tokens == 48 * 4096
    staged = config.with_values({"memory.recompute_layers": 3, "parallel.pp": 4, "schedule.kind": "zb_h1"})
    assert workload_of(staged) == Workload(PRESETS["1b"], 4096, 48, "full", 12, recomputes_whole_block=True)
    uneven = staged.with_values({"schedule.stage_layers": [2, 2, 6, 6]})
    assert workload_of(uneven).recomputed_layers == 2 + 2 + 3 + 3
    mixed = config.with_values({"model.experts": 8, "model.expert_ffn_hidden": 1024})
    assert workload_of(mixed) == Workload(PRESETS["1b"], 4096, 48, "full", None, 8, 2, 1024)
    with pytest.raises(InputError, match="preset"):
        workload_of(config.with_values({"model.preset": "huge"}))


def test_the_convention_names_both_papers() -> None:
    assert "2104.04473" in CONVENTION
    assert "2205.05198" in CONVENTION


def test_layers_that_micro_batches_leave_out_do_not_count() -> None:
    whole = small(model__layers=8, parallel__pp=4, schedule__stage_layers=[1, 3, 3, 1])
    partial = whole.with_values({"schedule.skip_share": 0.25})
    every, some = workload_of(whole), workload_of(partial)
    assert (every.layer_share, some.layer_share) == (1.0, 5 / 8)
    head = 3 * every.tokens * 2 * every.shape.vocabulary * every.shape.hidden
    left = (model_flops_per_step(some) - head) / (model_flops_per_step(every) - head)
    assert left == pytest.approx(5 / 8, rel=1e-6)
