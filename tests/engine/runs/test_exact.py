"""Every layout computes what one process computes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from engine.config.validation.rules import problems
from engine.schedules.registry import SCHEDULES
from engine.session import Session
from tests.support.runs import execute, small

RANKS = 4
LOSS_TOLERANCE = 1e-5
DEGREES = (1, 2, 4)
#: Layers enough for two stages on each of four ranks.
DEEP = {"model__layers": 8, "model__hidden": 32, "model__ffn_hidden": 64}


def layouts() -> list[dict[str, Any]]:
    """Every legal (dp, tp, pp) on four ranks with every ZeRO stage and, where it matters, every schedule."""
    found = []
    for dp, tp, pp in itertools.product(DEGREES, repeat=3):
        for stage, kind in itertools.product((0, 1, 2, 3), SCHEDULES):
            values = {"parallel__dp": dp, "parallel__tp": tp, "parallel__pp": pp}
            values |= {"parallel__zero_stage": stage, "schedule__kind": kind}
            values |= {"schedule__chunks": chunks} if (chunks := SCHEDULES[kind].shown_chunks) > 1 else {}
            wanted = dp * tp * pp == RANKS and (pp > 1 or kind == "1f1b") and (dp > 1 or stage in (0, 3))
            if wanted and not list(problems(small(**DEEP | values))):
                found.append(values)
    return found


def name(values: dict[str, Any]) -> str:
    """A short test id."""
    return "-".join(f"{key.split('__')[1]}{value}" for key, value in values.items())


@pytest.fixture(scope="module")
def reference(session: Session) -> list[float]:
    """Losses of three steps in one process."""
    outcome, summary = execute(session, small())
    assert outcome.good, outcome
    assert len(summary.losses) == 3
    return summary.losses


@pytest.fixture(scope="module")
def deep(session: Session) -> list[float]:
    """The same of a thin model with many layers."""
    outcome, summary = execute(session, small(**DEEP))
    assert outcome.good, outcome
    return summary.losses


def test_the_matrix_is_complete() -> None:
    degrees = {tuple(values[f"parallel__{axis}"] for axis in ("dp", "tp", "pp")) for values in layouts()}
    assert degrees == {(4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2), (1, 1, 4)}


@pytest.mark.drawn(5)
@pytest.mark.parametrize("values", layouts(), ids=name)
def test_losses_equal_one_process(session: Session, deep: list[float], values: dict[str, Any]) -> None:
    outcome, summary = execute(session, small(**DEEP | values))
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(deep, abs=LOSS_TOLERANCE, rel=0)


#: Parts of the decoder that tp does not split.
ALL_PARTS = ["embedding", "query_key_value", "attention_output", "gate_up", "down", "head"]
REPLICATED: list[dict[str, Any]] = [
    {"parallel__tp": 2, "parallel__tp_replicated": ["gate_up", "down"]},
    {
        "parallel__tp": 2,
        "parallel__tp_replicated": ["query_key_value", "attention_output"],
        "parallel__cp": 2,
    },
    {"parallel__tp": 2, "parallel__tp_replicated": ["embedding", "head"], "parallel__pp": 2},
    {"parallel__tp": 4, "parallel__tp_replicated": ALL_PARTS},
    {"parallel__tp": 2, "parallel__tp_replicated": ["head"], "parallel__dp": 2, "parallel__zero_stage": 1},
    {"parallel__tp": 2, "parallel__tp_replicated": ALL_PARTS, "parallel__dp": 2, "parallel__zero_stage": 3},
    {
        "parallel__tp": 2,
        "parallel__tp_replicated": ["query_key_value", "attention_output"],
        "memory__recompute": "selective",
    },
    {"parallel__tp": 2, "parallel__tp_replicated": ALL_PARTS, "memory__recompute": "full"},
    {
        "parallel__tp": 2,
        "parallel__tp_replicated": ["down", "head"],
        "parallel__pp": 2,
        "schedule__kind": "zb_h1",
    },
    {"parallel__tp": 2, "parallel__tp_replicated": ["embedding"], "overlap__tp_chunks": 2},
    {"parallel__tp": 2, "parallel__tp_replicated": ["query_key_value", "down"], "overlap__tp_chunks": 2},
    {"parallel__tp": 2, "parallel__tp_replicated": ["gate_up"], "parallel__tp_regather": True},
]


@pytest.mark.drawn(5)
@pytest.mark.parametrize(
    "values",
    [
        {"memory__recompute": "full"},
        {"memory__recompute": "full", "parallel__dp": 2, "parallel__zero_stage": 3},
        {"memory__recompute": "full", "parallel__tp": 2, "parallel__pp": 2},
        {"parallel__dp": 2, "overlap__bucket_mb": 0.1},
        {"parallel__dp": 2, "batch__micro_batch": 4},
        {"parallel__zero_stage": 3},
        {"parallel__dp": 4, "parallel__zero_stage": 3, "parallel__shard_ranks": 2},
        {"parallel__dp": 4, "parallel__zero_stage": 2, "parallel__shard_ranks": 2},
        {"parallel__dp": 2, "parallel__zero_stage": 1, "overlap__bucket_mb": 0.1, "parallel__tp": 2},
        {"parallel__tp": 2, "parallel__tp_regather": True},
        {"parallel__tp": 2, "parallel__tp_regather": True, "memory__recompute": "selective"},
        {"parallel__tp": 2, "parallel__tp_regather": True, "parallel__cp": 2},
        {"parallel__tp": 2, "parallel__tp_regather": True, "parallel__dp": 2, "parallel__zero_stage": 3},
        {
            "parallel__tp": 2,
            "parallel__tp_regather": True,
            "parallel__pp": 2,
            "schedule__kind": "zb_v",
            "schedule__chunks": 2,
        },
        *REPLICATED,
        {"parallel__dp": 2, "parallel__zero_stage": 2, "parallel__reduce_every_micro_batch": True},
        {"parallel__dp": 2, "parallel__zero_stage": 3, "parallel__reduce_every_micro_batch": True},
        {
            "parallel__dp": 4,
            "parallel__zero_stage": 3,
            "parallel__shard_ranks": 2,
            "parallel__reduce_every_micro_batch": True,
        },
        {
            "parallel__dp": 2,
            "parallel__zero_stage": 2,
            "parallel__reduce_every_micro_batch": True,
            "parallel__pp": 2,
            "schedule__kind": "breadth_first",
        },
        {"parallel__pp": 2, "schedule__stage_layers": [1, 3]},
        {"parallel__dp": 2, "parallel__cp": 2, "parallel__embedding": "columns"},
        {"parallel__pp": 3},
        {"schedule__kind": "zb_h1", "parallel__dp": 2},
        {"schedule__kind": "zb_v", "schedule__chunks": 2},
        {"schedule__kind": "layered", "schedule__chunks": 4},
        {"schedule__kind": "layered", "schedule__chunks": 4, "parallel__dp": 2, "parallel__zero_stage": 3},
        {"parallel__pp": 2, "schedule__kind": "zb_h1", "memory__recompute": "full", "parallel__tp": 2},
    ],
    ids=name,
)
def test_memory_and_overlap_settings_change_no_loss(
    session: Session, reference: list[float], values: dict[str, Any]
) -> None:
    outcome, summary = execute(session, small(**values))
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(reference, abs=LOSS_TOLERANCE, rel=0)


@pytest.mark.parametrize(
    "values",
    [
        {"parallel__dp": 2},
        {"parallel__dp": 2, "parallel__zero_stage": 1, "parallel__pp": 2},
        {"parallel__dp": 2, "precision": "bf16"},
    ],
    ids=["data", "slices and stages", "bf16"],
)
def test_an_embedding_in_columns_learns_the_same_to_the_bit(session: Session, values: dict[str, Any]) -> None:
    """With one micro-batch a step: of several, sums are taken over ranks first. The norm is a sum of other parts, so
    it may not clip.
    """
    alike = values | {"batch__global_batch": 4, "batch__micro_batch": 2, "train__clip_norm": None}
    _, whole = execute(session, small(**alike))
    outcome, split = execute(session, small(**alike, parallel__embedding="columns"))
    assert outcome.good, outcome
    assert split.losses == whole.losses and split.validation_loss == whole.validation_loss
    assert split.gradient_norms == pytest.approx(whole.gradient_norms, rel=1e-6)


@pytest.mark.parametrize(
    "values",
    [
        {"model__tied_embeddings": True},
        {"model__tied_embeddings": True, "parallel__pp": 2, "model__layer_groups": 1},
        {"model__tied_embeddings": True, "parallel__dp": 2, "parallel__zero_stage": 3},
    ],
    ids=name,
)
def test_matrices_on_every_tensor_rank_may_be_shared(session: Session, values: dict[str, Any]) -> None:
    model = {key: value for key, value in values.items() if key.startswith("model__")}
    _, alone = execute(session, small(**model))
    outcome, whole = execute(session, small(**values, parallel__tp=2, parallel__tp_replicated=ALL_PARTS))
    assert outcome.good, outcome
    assert whole.losses == pytest.approx(alone.losses, abs=LOSS_TOLERANCE, rel=0)


def test_grouped_query_heads_split_over_tensor_parallel(session: Session) -> None:
    _, alone = execute(session, small(model__kv_heads=2))
    _, split = execute(session, small(model__kv_heads=2, parallel__tp=2))
    assert split.losses == pytest.approx(alone.losses, abs=LOSS_TOLERANCE, rel=0)


def test_bf16_is_close_to_fp32_in_every_kind_of_parallelism(session: Session, reference: list[float]) -> None:
    for values in (
        {},
        {"parallel__dp": 2, "parallel__zero_stage": 3},
        {"parallel__tp": 2, "parallel__pp": 2},
    ):
        outcome, summary = execute(session, small(precision="bf16", **values))
        assert outcome.good, outcome
        assert summary.losses == pytest.approx(reference, abs=0.05, rel=0)
        assert summary.losses != reference


def test_another_seed_gives_other_losses(session: Session, reference: list[float]) -> None:
    _, summary = execute(session, small(train__seed=1))
    assert max(abs(a - b) for a, b in zip(summary.losses, reference, strict=True)) > 100 * LOSS_TOLERANCE


def test_validation_loss_does_not_depend_on_the_layout(session: Session) -> None:
    _, alone = execute(session, small())
    _, split = execute(session, small(parallel__pp=2, parallel__tp=2))
    assert alone.validation_loss is not None
    assert split.validation_loss == pytest.approx(alone.validation_loss, abs=LOSS_TOLERANCE)
