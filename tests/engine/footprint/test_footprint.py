"""What a rank must hold, by formula: checked against sums over a whole model and against published formulas."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.config.presets import PRESETS
from engine.config.run_config import RunConfig, parse
from engine.config.validation.rules import problems
from engine.footprint.activations import block_bytes, published_bytes, stage_activations
from engine.footprint.flops import parameters, workload_of
from engine.footprint.footprint import Footprint, footprints, largest, parts_of, plan_of
from engine.schedules.registry import SCHEDULES


def config(**values: Any) -> RunConfig:
    made = parse({}).with_values({key.replace("__", "."): value for key, value in values.items()})
    assert not list(problems(made))
    return made


def only(**values: Any) -> Footprint:
    (row,) = footprints(config(**values))
    return row


@given(st.integers(1, 4), st.sampled_from((None, 4)), st.sampled_from(sorted(SCHEDULES)), st.integers(1, 4))
def test_stages_share_out_the_model(pp: int, experts: int | None, kind: str, chunks: int) -> None:
    made = parse({"parallel": {"pp": pp}, "model": {"layers": 9, "experts": experts}})
    made = made.with_values({"schedule.kind": kind, "schedule.chunks": chunks})
    assume(not list(problems(made)))
    rows = footprints(made)
    assert sum(row.parameters for row in rows) == parameters(workload_of(made))
    assert sum(row.layers for row in rows) == 9
    assert sorted(stage for row in rows for stage in row.stages) == list(range(pp * chunks))


def test_a_rank_of_a_trillion_parameters() -> None:
    rows = footprints(
        config(model__preset="1t", parallel__tp=8, parallel__pp=64, parallel__dp=2, batch__global_batch=512)
    )
    shape = PRESETS["1t"]
    norms = 2 * shape.hidden
    layer = (shape.layer_parameters - norms) // 8 + norms
    assert [row.rank for row in rows[:3]] == [0, 16, 32]
    assert {row.ranks for row in rows} == {16}
    assert rows[1].parameters == 2 * layer
    assert rows[0].parameters == rows[1].parameters + shape.vocabulary // 8 * shape.hidden
    assert rows[-1].parameters == rows[0].parameters + shape.hidden
    assert rows[1].optimizer_bytes == 2 * rows[1].parameter_bytes == 2 * rows[1].gradient_bytes == 16 * layer


def test_zero_stages_divide_one_thing_after_the_other() -> None:
    whole, *zero = [only(parallel__dp=4, parallel__zero_stage=stage) for stage in range(4)]
    states = [(row.parameter_bytes, row.gradient_bytes, row.optimizer_bytes) for row in (whole, *zero)]
    four = 4 * whole.parameters
    assert states[0] == (four, four, 2 * four)
    assert states[1] == (four, four, 2 * four // 4)
    # Whole gradients are summed until the last micro-batch.
    assert states[2] == states[3] == (four // 4, four, 2 * four // 4)
    once = only(parallel__dp=4, parallel__zero_stage=3, batch__global_batch=8)
    assert once.gradient_bytes == four // 4


def test_rows_that_do_not_divide_are_padded() -> None:
    three = only(parallel__dp=3, parallel__zero_stage=3)
    assert three.parameters > only().parameters / 3
    assert three.parameters - only().parameters / 3 < 0.02 * three.parameters


def test_hybrid_sharding_keeps_more() -> None:
    values = {"parallel__dp": 4, "parallel__zero_stage": 3}
    assert only(**values, parallel__shard_ranks=2).parameters == 2 * only(**values).parameters


def test_experts_are_spread_over_ranks() -> None:
    values = {"model__experts": 4, "parallel__dp": 4}
    whole, spread = only(**values), only(**values, parallel__ep=4)
    shape = PRESETS["tiny"]
    matrices = shape.layers * 4 * 3 * shape.hidden * shape.ffn_hidden
    assert whole.parameters - spread.parameters == matrices - matrices // 4


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "zb_h1"])
def test_activations_follow_the_schedule(kind: str) -> None:
    made = config(parallel__pp=4, schedule__kind=kind, batch__micro_batch=2, model__layers=8)
    chosen, rows = plan_of(made), footprints(made)
    kept = [stage_activations(made, part).device for part in parts_of(made, chosen)]
    micro_batches = {"gpipe": [24] * 4, "1f1b": [4, 3, 2, 1], "zb_h1": [4] * 4}[kind]
    assert [row.in_flight for row in rows] == micro_batches
    if kind != "zb_h1":
        assert [row.activation_bytes for row in rows] == [
            many * one for many, one in zip(micro_batches, kept, strict=True)
        ]
    else:
        whole = [many * one for many, one in zip([4, 3, 2, 1], kept, strict=True)]
        assert all(row.activation_bytes >= most for row, most in zip(rows, whole, strict=True))
        assert all(row.activation_bytes < 4 * one for row, one in zip(rows[1:], kept[1:], strict=True))


def test_uneven_chunks_are_weighed_by_their_size() -> None:
    made = config(
        parallel__pp=2, schedule__kind="interleaved", schedule__chunks=2, model__layers=8,
        schedule__stage_layers=[1, 1, 5, 1],
    )  # fmt: skip
    first, second = footprints(made)
    assert first.stages == (0, 2)
    assert first.layers == 6
    assert first.activation_bytes > 2 * second.activation_bytes


def test_published_activations_of_the_22b_model() -> None:
    """Sequence 2,048, batch 4, hidden 6,144, t = 8: 34 s b h / t a layer, or 2 s b h (arXiv 2205.05198, table 2)."""
    values: dict[str, Any] = {
        "model__preset": "22b",
        "data__sequence_length": 2048,
        "batch__micro_batch": 4,
        "parallel__tp": 8,
        "precision": "bf16",
    }
    tokens_hidden = 2048 * 4 * 6144
    assert published_bytes(config(**values), 48) == 48 * 34 * tokens_hidden // 8
    assert published_bytes(config(**values, memory__recompute="full"), 48) == 48 * 2 * tokens_hidden
    assert published_bytes(config(**values | {"precision": "fp32"}), 48) is None
    assert published_bytes(config(**values, model__experts=8), 48) is None


def test_each_way_of_recomputing_keeps_less() -> None:
    sizes = [only(memory__recompute=how).activation_bytes for how in ("full", "selective", "none")]
    assert sizes == sorted(set(sizes))
    some = only(memory__recompute="full", memory__recompute_layers=2).activation_bytes
    assert sizes[0] < some < sizes[2]


def test_a_block_that_is_recomputed_keeps_its_input() -> None:
    made = config(memory__recompute="full", precision="bf16", parallel__tp=2)
    assert block_bytes(made, "full") == 128 * 2 * 160 // 2 * 2


def test_offloading_moves_bytes_to_the_host() -> None:
    values: dict[str, Any] = {"model__layers": 8, "parallel__dp": 2}
    stays, leaves = only(**values), only(**values, memory__offload="both")
    assert leaves.optimizer_bytes == 0
    assert leaves.activation_bytes < 0.5 * stays.activation_bytes
    moved = stays.activation_bytes + stays.optimizer_bytes + 4 * stays.parameters
    assert leaves.host_bytes == pytest.approx(moved, rel=0.1)


def test_bf16_parameters_have_an_fp32_copy() -> None:
    row = only(memory__parameters="bf16", precision="bf16")
    assert (row.parameter_bytes, row.gradient_bytes, row.optimizer_bytes) == (
        2 * row.parameters, 4 * row.parameters, 12 * row.parameters,
    )  # fmt: skip


def test_no_copy_of_a_matrix_is_kept() -> None:
    plain, narrow = only(precision="bf16"), only(precision="bf16", memory__parameters="bf16")
    norms = 9 * 160
    assert narrow.activation_bytes - plain.activation_bytes == 4 * norms
    sharded = only(precision="bf16", parallel__dp=2, parallel__zero_stage=3)
    assert sharded.activation_bytes == plain.activation_bytes
    matrices = PRESETS["tiny"].parameters - norms
    assert sharded.parameter_bytes == 4 * (matrices // 2 + norms)


def test_slices_of_gathered_inputs_are_kept() -> None:
    values = {"parallel__tp": 4, "model__layers": 8}
    whole, slices = only(**values), only(**values, parallel__tp_regather=True)
    activation = 4 * 128 * 2 * 160
    assert whole.activation_bytes - slices.activation_bytes == (2 * 8 + 1) * activation * 3 // 4
    assert slices.buffer_bytes - whole.buffer_bytes == activation


def test_gradients_that_are_scattered_at_once_are_slices() -> None:
    values = {"parallel__dp": 4, "parallel__zero_stage": 2}
    last, always = only(**values), only(**values, parallel__reduce_every_micro_batch=True)
    assert (last.gradient_bytes, always.gradient_bytes) == (4 * only().parameters, only().parameters)


def test_communication_needs_buffers() -> None:
    assert only().buffer_bytes == 0
    pipeline = footprints(config(parallel__pp=4))
    message = 4 * 128 * 2 * 160
    assert [row.buffer_bytes for row in pipeline] == [message, 2 * message, 2 * message, message]
    stages = [only(parallel__dp=4, parallel__zero_stage=stage).buffer_bytes for stage in (3, 2)]
    assert 0 < stages[0] < stages[1]
    half = only(parallel__dp=2, compression__method="fp16")
    assert half.buffer_bytes == 2 * half.parameters


def test_the_largest_rank_is_the_one_that_holds_most() -> None:
    made = config(parallel__pp=4)
    assert largest(made).total_bytes == max(row.total_bytes for row in footprints(made))
    assert largest(made).as_dict()["total_bytes"] == largest(made).total_bytes
