"""Ranks and coordinates, and what a layout must keep."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config.errors import InputError, LayoutError
from engine.config.knobs.catalogue import acts
from engine.config.layout import Layout, accumulation
from engine.config.run_config import parse
from engine.config.validation.rules import check, problems
from tests.support.runs import small

DEGREE = st.integers(1, 4)


@given(DEGREE, DEGREE, DEGREE, DEGREE)
def test_ranks_and_coordinates_are_one_to_one(dp: int, tp: int, pp: int, cp: int) -> None:
    layout = Layout(dp, tp, pp, cp)
    places = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert len(set(places)) == layout.world_size
    assert [layout.rank(place) for place in places] == list(range(layout.world_size))


@given(DEGREE, DEGREE, DEGREE, DEGREE, st.sampled_from(["dp", "tp", "pp", "cp", "model", "data"]))
def test_groups_divide_the_world(dp: int, tp: int, pp: int, cp: int, axis: str) -> None:
    layout = Layout(dp, tp, pp, cp)
    groups = layout.groups(axis)
    size = tp * pp if axis == "model" else getattr(layout, axis)
    assert all(len(group) == size for group in groups)
    assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))


def test_experts_and_shards_divide_the_data_ranks() -> None:
    layout = Layout(dp=2, cp=2, tp=2, ep=2, zero_stage=3, shard_ranks=2)
    assert layout.groups("data")[0] == [0, 2, 4, 6]
    assert layout.groups("ep")[0] == layout.groups("shard")[0] == [0, 2]
    assert layout.groups("edp")[0] == layout.groups("replicate")[0] == [0, 4]
    for kind in ("ep", "edp", "shard", "replicate"):
        assert sorted(rank for group in layout.groups(kind) for rank in group) == list(range(8))


def test_tensor_parallel_ranks_are_neighbours() -> None:
    assert Layout(2, 2, 2).groups("tp")[0] == [0, 1]
    assert Layout(2, 2, 2).groups("pp")[0] == [0, 4]


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"parallel__world_size": 3, "parallel__dp": 2}, "parallel.world_size", "= 2 ranks"),
        ({"parallel__tp": 3}, "parallel.tp", "must divide heads=4; nearest legal: 2 or 4"),
        ({"parallel__pp": 5}, "parallel.pp", "5 stages for layers=4; nearest legal: 4"),
        (
            {"parallel__pp": 2, "schedule__kind": "interleaved", "schedule__chunks": 3},
            "schedule.chunks",
            "6 stages for layers=4; nearest legal: 2",
        ),
        ({"parallel__pp": 2, "schedule__chunks": 2}, "schedule.chunks", "exactly 1"),
        ({"parallel__pp": 2, "schedule__kind": "zb_v"}, "schedule.chunks", "exactly 2"),
        ({"parallel__pp": 2, "schedule__stage_layers": [1, 1, 2]}, "schedule.stage_layers", "give 2 numbers"),
        (
            {"parallel__pp": 2, "schedule__kind": "zb_h1", "parallel__zero_stage": 3},
            "schedule.kind",
            "set zero_stage to 0 or 1",
        ),
        ({"parallel__pp": 2, "schedule__kind": "zb_h1", "compile": True}, "schedule.kind", "compile"),
        ({"parallel__shard_ranks": 2, "parallel__dp": 2}, "parallel.shard_ranks", "zero_stage 2 or 3"),
        (
            {"parallel__shard_ranks": 3, "parallel__dp": 4, "parallel__zero_stage": 3},
            "parallel.shard_ranks",
            "nearest legal: 2 or 4",
        ),
        (
            {"parallel__shard_ranks": 1, "parallel__dp": 4, "parallel__zero_stage": 3},
            "parallel.shard_ranks",
            "splits nothing",
        ),
        ({"parallel__tp_regather": True}, "parallel.tp_regather", "set it to false or raise tp"),
        (
            {"parallel__reduce_every_micro_batch": True, "parallel__dp": 2, "parallel__zero_stage": 1},
            "parallel.reduce_every_micro_batch",
            "only zero_stage 2 or 3 shards gradients",
        ),
        ({"parallel__dp": 3}, "parallel.dp", "must divide global_batch=8; nearest legal: 2 or 4"),
        ({"parallel__dp": 4, "batch__global_batch": 4_000_000_006}, "parallel.dp", "nearest legal: 2 or "),
        ({"batch__micro_batch": 3}, "batch.micro_batch", "nearest legal: 2 or 4"),
        (
            {"parallel__cp": 3},
            "data.sequence_length",
            "multiple of 6 with cp=3 (ring) and tp=1; nearest legal: 66",
        ),
        (
            {"parallel__cp": 2, "parallel__tp": 4, "parallel__cp_method": "ulysses"},
            "parallel.cp",
            "heads / tp = 1",
        ),
        ({"parallel__ep": 2}, "parallel.ep", "set model.experts"),
        ({"model__capacity_factor": 1.0}, "model.capacity_factor", "set model.experts"),
        (
            {"model__experts": 4, "model__experts_per_token": 5},
            "model.experts_per_token",
            "at most experts=4",
        ),
        ({"model__experts": 4, "parallel__ep": 2}, "parallel.ep", "must divide dp x cp = 1"),
        ({"model__experts": 4, "parallel__ep": 3, "parallel__dp": 4}, "parallel.ep", "nearest legal: 2 or 4"),
        ({"model__experts": 4, "compile": True}, "compile", "set it to false"),
        (
            {"model__experts": 8, "parallel__ep": 8, "parallel__dp": 8, "parallel__ep_island": 3},
            "parallel.ep_island",
            "must divide ep=8 into islands; choose one of [2, 4]",
        ),
        ({"parallel__embedding": "columns"}, "parallel.embedding", "over dp x cp, which is 1"),
        (
            {"parallel__embedding": "columns", "parallel__dp": 3},
            "parallel.embedding",
            "must divide hidden=160",
        ),
        (
            {"parallel__embedding": "columns", "parallel__dp": 2, "parallel__zero_stage": 3},
            "parallel.embedding",
            "0 or 1",
        ),
        (
            {"parallel__embedding": "columns", "parallel__dp": 2, "parallel__tp": 2},
            "parallel.embedding",
            "set tp to 1",
        ),
        (
            {"parallel__embedding": "columns", "parallel__dp": 2, "model__tied_embeddings": True},
            "parallel.embedding",
            "the head needs all",
        ),
        ({"parallel__ep_island": 2}, "parallel.ep_island", "set model.experts, or leave this out"),
        ({"compression__method": "topk"}, "compression.method", "dp=1"),
        (
            {"compression__method": "fp16", "parallel__dp": 2, "parallel__zero_stage": 3},
            "compression.method",
            "needs zero_stage 0",
        ),
    ],
)
def test_broken_rules_name_field_value_and_remedy(values: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(LayoutError) as caught:
        check(small(**values))
    assert caught.value.field == field
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@given(
    st.fixed_dictionaries(
        {
            "dp": st.integers(1, 9),
            "tp": st.integers(1, 9),
            "pp": st.integers(1, 9),
            "zero_stage": st.integers(0, 3),
        }
    ),
    st.integers(1, 9),
    st.integers(1, 64),
)
def test_any_configuration_is_legal_or_explained(parallel: dict[str, int], micro: int, batch: int) -> None:
    config = parse({"parallel": parallel, "batch": {"micro_batch": micro, "global_batch": batch}})
    found = list(problems(config))
    if not found:
        assert accumulation(config) * micro * parallel["dp"] == batch
    assert all(isinstance(problem, InputError) and len(str(problem)) < 200 for problem in found)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("compression.ratio", 0.05),
        ("compression.expert_rate", 0.5),
        ("compression.expert_residual", True),
        ("train.adapt_rank", 4000),
        ("schedule.skip_order", "unplanned"),
    ],
)
def test_details_of_a_method_that_is_off_stand_unused(key: str, value: Any) -> None:
    config = small().with_values({key: value})
    check(config)
    assert not acts(key, config.flat())


def test_beside_a_time_no_rule_asks_for_steps() -> None:
    """They are replaced by as many as fit; without it a warm-up of all steps leaves none to fall in."""
    rising = {"train__learning_rate_schedule": "cosine", "train__learning_rate_warmup": 30}
    check(small(**rising, train__seconds=4.0, train__steps=24))
    with pytest.raises(LayoutError, match="all 24 steps are warm-up"):
        check(small(**rising, train__steps=24))
