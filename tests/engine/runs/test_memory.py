"""Runs with each memory technique, alone and together with every axis, give the numbers of a plain one."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.run_config import parse
from engine.config.validation.rules import problems
from engine.session import Session
from profilers.model.run_summary import RunSummary
from tests.engine.runs.test_exact import DEEP, LOSS_TOLERANCE, name
from tests.engine.runs.test_matrix import EXPERTS, NORM_TOLERANCE
from tests.support.runs import execute, small

SELECTIVE, FULL = {"memory__recompute": "selective"}, {"memory__recompute": "full"}
OFFLOAD = {"memory__offload": "both"}
PIPELINE = {"parallel__pp": 2}

RUNS: list[dict[str, Any]] = [
    SELECTIVE,
    FULL | {"memory__recompute_layers": 3},
    OFFLOAD,
    FULL | OFFLOAD,
    SELECTIVE | OFFLOAD | {"parallel__dp": 2, "parallel__tp": 2},
    SELECTIVE | OFFLOAD | {"parallel__dp": 2, "parallel__zero_stage": 1, "overlap__bucket_mb": 0.05},
    SELECTIVE | OFFLOAD | {"parallel__dp": 2, "parallel__zero_stage": 2},
    FULL | OFFLOAD | {"parallel__dp": 2, "parallel__zero_stage": 3, "memory__recompute_layers": 5},
    SELECTIVE | OFFLOAD | {"parallel__dp": 4, "parallel__zero_stage": 3, "parallel__shard_ranks": 2},
    SELECTIVE | {"parallel__cp": 2},
    SELECTIVE | OFFLOAD | {"parallel__cp": 2, "parallel__cp_method": "ulysses", "parallel__dp": 2},
    FULL | OFFLOAD | {"parallel__cp": 2, "parallel__tp": 2},
    *(SELECTIVE | OFFLOAD | PIPELINE | {"schedule__kind": kind} for kind in ("gpipe", "1f1b", "zb_h1")),
    *(
        FULL
        | OFFLOAD
        | PIPELINE
        | {"schedule__kind": kind, "schedule__chunks": 2, "memory__recompute_layers": 1}
        for kind in ("interleaved", "zb_v", "breadth_first")
    ),
    SELECTIVE | OFFLOAD | PIPELINE | {"schedule__kind": "layered", "schedule__chunks": 4, "parallel__dp": 2},
    FULL | OFFLOAD | PIPELINE | {"parallel__dp": 2, "parallel__zero_stage": 3},
    FULL | OFFLOAD | PIPELINE | {"schedule__kind": "zb_h1", "parallel__tp": 2},
]
MIXED: list[dict[str, Any]] = [
    SELECTIVE | OFFLOAD,
    FULL | OFFLOAD | {"parallel__dp": 2, "parallel__ep": 2, "batch__micro_batch": 4},
    SELECTIVE
    | OFFLOAD
    | {"parallel__dp": 2, "parallel__ep": 2, "batch__micro_batch": 4, "parallel__zero_stage": 1},
]


@pytest.fixture(scope="module")
def plain(session: Session) -> RunSummary:
    """Three steps of one process that keeps everything."""
    return run(session, DEEP)


def run(session: Session, values: dict[str, Any]) -> RunSummary:
    outcome, summary = execute(session, small(**{"train__validation_batches": 0} | values))
    assert outcome.good, outcome
    return summary


def same(found: RunSummary, wanted: RunSummary) -> None:
    assert found.losses == pytest.approx(wanted.losses, abs=LOSS_TOLERANCE, rel=0)
    assert found.gradient_norms == pytest.approx(wanted.gradient_norms, rel=NORM_TOLERANCE)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("values", RUNS, ids=name)
def test_no_technique_changes_a_number(session: Session, plain: RunSummary, values: dict[str, Any]) -> None:
    same(run(session, DEEP | values), plain)


def test_nor_with_experts(session: Session) -> None:
    mixed = DEEP | EXPERTS | {"model__layers": 2}
    wanted = run(session, mixed | {"batch__micro_batch": 8})
    for values in MIXED:
        same(run(session, mixed | {"batch__micro_batch": 8} | values), wanted)


def test_bf16_parameters_train_like_fp32_ones_and_alike_in_every_layout(session: Session) -> None:
    base = DEEP | {"precision": "bf16"}
    wanted = run(session, base)
    narrow = base | {"memory__parameters": "bf16"}
    alone = run(session, narrow)
    assert alone.losses == pytest.approx(wanted.losses, abs=5e-3, rel=0)
    assert alone.losses[2] < alone.losses[0]
    for values in (
        {"parallel__dp": 2},
        {"parallel__dp": 2, "parallel__zero_stage": 1, "memory__offload": "optimizer"},
        {"parallel__pp": 2, "schedule__kind": "zb_h1", "memory__offload": "both"},
        {"parallel__dp": 2, "parallel__zero_stage": 3},
    ):
        assert run(session, narrow | values).losses == pytest.approx(alone.losses, abs=2e-3, rel=0)


def test_a_run_says_what_its_settings_did_not_do(session: Session) -> None:
    sharded = {
        "parallel__dp": 2,
        "parallel__zero_stage": 2,
        "precision": "bf16",
        "memory__parameters": "bf16",
    }
    summary = run(session, DEEP | OFFLOAD | sharded)
    assert [note.split(" ")[0] for note in summary.notes] == ["memory.offload=both", "memory.parameters=bf16"]
    assert run(session, DEEP).notes == []


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"memory": {"recompute_layers": 2}}, "memory.recompute_layers", "selective or full"),
        (
            {"memory": {"recompute": "full", "recompute_layers": 9}},
            "memory.recompute_layers",
            "nearest legal: 4",
        ),
        (
            {"memory": {"recompute": "full", "recompute_layers": 3}, "parallel": {"pp": 2}},
            "memory.recompute_layers",
            "nearest legal: 2",
        ),
        ({"memory": {"parameters": "bf16"}}, "memory.parameters", "set precision to bf16, or this to fp32"),
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, Any], field: str, words: str) -> None:
    found = list(problems(parse(values)))
    assert [problem.field for problem in found] == [field]
    assert words in str(found[0])
