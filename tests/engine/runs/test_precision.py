"""bf16: the same numbers whoever holds the parameters, and no copy of a matrix kept for any micro-batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from engine.config.presets import ModelShape
from engine.model.activation_memory import is_weight
from engine.model.axes import Axes, LocalExperts
from engine.model.decoder import Decoder, Embedding, initialize
from engine.model.experts.dispatch import batched_linear, grouped_linear
from engine.model.experts.mixture import MixtureShape
from engine.model.linear import linear
from engine.parallel.context.axis import WholeSequence
from engine.parallel.tensor import TensorParallel
from engine.session import Session
from profilers.model.run_summary import RunSummary
from tests.engine.runs.test_exact import name
from tests.support.runs import execute, small

BF16: dict[str, Any] = {
    "precision": "bf16",
    "model__layers": 4,
    "model__hidden": 64,
    "model__ffn_hidden": 128,
    "train__validation_batches": 0,
    "train__learning_rate": 1e-2,
}
EXPERTS = {"model__experts": 4, "batch__micro_batch": 4}
#: The order of a sum over ranks is all that may differ.
LOSS_TOLERANCE, NORM_TOLERANCE = 2e-4, 1e-3
SHAPE = ModelShape(layers=2, hidden=64, heads=4, kv_heads=2, ffn_hidden=96, vocabulary=128)
SEQUENCE = 32
AXES = Axes(TensorParallel(), WholeSequence(), LocalExperts())


def run(session: Session, values: dict[str, Any]) -> RunSummary:
    outcome, summary = execute(session, small(**BF16 | values))
    assert outcome.good, outcome
    return summary


@pytest.fixture(scope="module")
def whole(session: Session) -> dict[bool, RunSummary]:
    """Two data ranks with whole parameters, without and with experts."""
    return {mixed: run(session, {"parallel__dp": 2} | (EXPERTS if mixed else {})) for mixed in (False, True)}


@pytest.mark.drawn(5)
@pytest.mark.parametrize("mixed", [False, True], ids=["dense", "experts"])
@pytest.mark.parametrize(
    "values",
    [
        {"parallel__zero_stage": 1},
        {"parallel__zero_stage": 2},
        {"parallel__zero_stage": 3},
        {"parallel__zero_stage": 3, "memory__recompute": "full"},
        {"parallel__zero_stage": 3, "memory__offload": "both"},
        {"parallel__zero_stage": 2, "parallel__reduce_every_micro_batch": True},
    ],
    ids=name,
)
def test_sharding_rounds_nothing_more(
    session: Session, whole: dict[bool, RunSummary], values: dict[str, Any], mixed: bool
) -> None:
    found = run(session, {"parallel__dp": 2} | (EXPERTS if mixed else {}) | values)
    assert found.losses == pytest.approx(whole[mixed].losses, abs=LOSS_TOLERANCE, rel=0)
    assert found.gradient_norms == pytest.approx(whole[mixed].gradient_norms, rel=NORM_TOLERANCE)


def test_nor_do_replicas_tensor_parallelism_and_pipelines_around_it(session: Session) -> None:
    for values in (
        {"parallel__dp": 4, "parallel__shard_ranks": 2},
        {"parallel__dp": 2, "parallel__tp": 2, "parallel__tp_regather": True},
        {"parallel__dp": 2, "parallel__pp": 2, "schedule__kind": "breadth_first"},
        {"parallel__dp": 2, "parallel__ep": 2} | EXPERTS,
    ):
        wanted = run(session, {key: value for key, value in values.items() if "shard" not in key})
        found = run(session, values | {"parallel__zero_stage": 3})
        # Twice as much, since tp adds sums of its own; a reduction in bf16 is off by 8e-4 in the test above.
        assert found.losses == pytest.approx(wanted.losses, abs=2 * LOSS_TOLERANCE, rel=0), values
        assert found.gradient_norms == pytest.approx(wanted.gradient_norms, rel=NORM_TOLERANCE), values


def kept_bytes(batch: int, mixture: MixtureShape | None) -> int:
    """What one forward in bf16 with fp32 parameters keeps beside them."""
    decoder = Decoder(SHAPE, range(2), AXES, mixture=mixture, sequence_length=SEQUENCE, dtype=torch.bfloat16)
    initialize(decoder, 0)
    resident = decoder.rotary.untyped_storage().data_ptr()
    seen: dict[int, Tensor] = {}
    parameters = {one.untyped_storage().data_ptr() for one in decoder.parameters()}

    def note(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in parameters and address != resident:
            seen[address] = tensor.detach()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        decoder(torch.arange(batch * SEQUENCE).view(batch, SEQUENCE) % SHAPE.vocabulary)
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())


@pytest.mark.parametrize(
    "mixture",
    [None, MixtureShape(64, 32, 4), MixtureShape(64, 32, 4, capacity_factor=1.0)],
    ids=["dense", "sorted experts", "padded experts"],
)
def test_what_is_kept_grows_with_tokens_alone(mixture: MixtureShape | None) -> None:
    one, two = (kept_bytes(batch, mixture) for batch in (4, 8))
    smallest_matrix = 2 * SHAPE.hidden * SHAPE.head_dim * SHAPE.kv_heads
    assert abs(2 * one - two) < smallest_matrix / 4  # counts of the routing


def test_products_that_cast_again_have_the_same_gradients() -> None:
    counts = torch.tensor([3, 0, 5])
    functions = [
        (linear, torch.randn(4, 2, 16), torch.randn(24, 16)),
        (batched_linear, torch.randn(3, 5, 16), torch.randn(3, 24, 16)),
        (lambda x, weight: grouped_linear(x, weight, counts), torch.randn(8, 16), torch.randn(3, 24, 16)),
        (lambda x, weight: grouped_linear(x, weight, counts), torch.randn(8, 10), torch.randn(3, 6, 10)),
    ]
    for function, rows, weight in functions:
        x = rows.bfloat16().requires_grad_()
        weight.requires_grad_()
        found, wanted = function(x, weight), function(x, weight.to(torch.bfloat16))
        assert torch.equal(found, wanted)
        target = torch.randn(found.shape).bfloat16()
        mine, theirs = (torch.autograd.grad(out, (x, weight), target) for out in (found, wanted))
        for gradient, other in zip(mine, theirs, strict=True):
            assert gradient.dtype == other.dtype
            torch.testing.assert_close(gradient, other, rtol=1e-2, atol=1e-2)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's compiler does
def test_compiled_products_cast_again_too() -> None:
    x, weight = torch.randn(4, 2, 16).bfloat16().requires_grad_(), torch.randn(24, 16, requires_grad=True)
    compiled = torch.compile(linear, backend="aot_eager", fullgraph=True)
    target = torch.randn(4, 2, 24).bfloat16()
    mine, theirs = (torch.autograd.grad(f(x, weight), (x, weight), target) for f in (compiled, linear))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_offloading_leaves_a_matrix_that_is_cast_again_where_it_is() -> None:
    weight, seen = torch.nn.Parameter(torch.randn(64, 64)), list[bool]()

    def note(tensor: Tensor) -> Tensor:
        seen.append(is_weight(tensor))
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        linear(torch.randn(8, 64, requires_grad=True).bfloat16(), weight)
    assert seen == [False, True]


def test_gradients_of_one_row_add_up_in_fp32() -> None:
    """In bf16 a sum of equal numbers stops to grow at 256 of them."""
    embedding = Embedding(SHAPE, TensorParallel(), torch.bfloat16).to(torch.bfloat16)
    torch.nn.init.ones_(embedding.weight)
    embedding(torch.full((4, 256), 3)).sum().backward()
    assert embedding.weight.grad is not None
    assert torch.equal(embedding.weight.grad[3].float(), torch.full((SHAPE.hidden,), 1024.0))
    assert not embedding.weight.grad[:3].any()
    naive = torch.ones(8, 4, dtype=torch.bfloat16, requires_grad=True)
    F.embedding(torch.full((1024,), 3), naive).sum().backward()
    assert naive.grad is not None and naive.grad[3, 0] < 1024
