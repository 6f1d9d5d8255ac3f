"""Runs whose blocks each do something else with their activations give the numbers of runs that keep everything, to the
bit; a budget for them makes a plan, which is told, and which no step exceeds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.config.run_config import parse
from engine.config.validation import live_changes
from engine.config.validation.rules import problems
from engine.footprint import block_plan
from engine.footprint.activations import costs_of_block
from engine.footprint.budget import check_budget, least_budget, too_small
from engine.parallel.memory_plan import BlockMeasurement, add_seconds
from engine.rank.worker import ending_of_exception
from engine.run.outcome import Ending
from engine.session import Session
from profilers.model.run_summary import RunSummary
from tests.engine.runs.test_exact import DEEP
from tests.support.runs import execute, small
from workbench.home import runs
from workbench.text import step

LAYERS = 6


def name(values: dict[str, Any]) -> str:
    """A short test id."""
    return "-".join(f"{key.rpartition('__')[2]}{value}" for key, value in values.items())


MIX = ["offload", "disk", "selective", "full", "keep", "disk"]
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"parallel__tp": 2},
    {"parallel__pp": 2},
    {"parallel__pp": 2, "schedule__kind": "gpipe"},
    {"parallel__pp": 2, "schedule__kind": "zb_h1"},
    {"parallel__pp": 2, "schedule__kind": "interleaved", "schedule__chunks": 3},
    {"parallel__cp": 2},
    {"parallel__dp": 2, "parallel__zero_stage": 1},
    {"parallel__dp": 2, "parallel__zero_stage": 3},
    {"parallel__dp": 2, "parallel__zero_stage": 2, "parallel__tp": 2},
    {"precision": "bf16"},
    {"memory__offload": "optimizer"},
]
BASE: dict[str, Any] = DEEP | {"model__layers": LAYERS, "train__validation_batches": 1}


def run(session: Session, values: dict[str, Any]) -> RunSummary:
    outcome, summary = execute(session, small(**(BASE | values)))
    assert outcome.good, outcome
    return summary


def same(found: RunSummary, wanted: RunSummary) -> None:
    assert found.losses == wanted.losses
    assert found.gradient_norms == wanted.gradient_norms
    assert found.validation_loss == wanted.validation_loss


@pytest.mark.drawn(4)
@pytest.mark.parametrize("values", LAYOUTS, ids=name)
def test_no_mix_changes_a_bit(session: Session, values: dict[str, Any]) -> None:
    same(run(session, values | {"memory__block_actions": MIX}), run(session, values))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nor_with_compiled_blocks(session: Session) -> None:
    compiled = {"compile": True, "train__step_timeout_seconds": 300.0}
    same(run(session, compiled | {"memory__block_actions": MIX}), run(session, compiled))


def test_nor_in_a_model_that_is_no_decoder(session: Session) -> None:
    model = {"model__workload": "vision", "train__validation_batches": 1}
    blocks = {"memory__block_actions": ["disk", "full", "offload", "keep"]}
    (_, plain), (outcome, mixed) = (execute(session, small(**model, **more)) for more in ({}, blocks))
    assert outcome.good, outcome
    same(mixed, plain)


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"parallel__pp": 2},
        {"parallel__tp": 2},
        {"parallel__cp": 2},
        {"parallel__dp": 2, "parallel__zero_stage": 3},
        {"parallel__dp": 2, "precision": "bf16"},
    ],
    ids=name,
)
def test_a_budget_makes_a_plan_that_is_told(session: Session, values: dict[str, Any], tmp_path: Path) -> None:
    config = small(**(BASE | values))
    least, whole = least_budget(config), small(**(BASE | values))
    assert whole.memory.budget_gib is None
    budget = 1.5 * least / 2**30
    plain, found = run(session, values), run(session, values | {"memory__budget_gib": budget})
    same(found, plain)
    stages = config.parallel.pp
    assert [row.stage for row in found.memory_plans] == list(range(stages))
    assert sum(len(row.actions) for row in found.memory_plans) == LAYERS
    for row in found.memory_plans:
        assert row.least_bytes <= row.peak_bytes <= row.budget_bytes == int(budget * 2**30)
        assert set(row.costs) == {"keep", "selective", "full", "offload", "disk"}
        assert row.costs["full"]["backward_seconds"] > row.costs["full"]["forward_seconds"] > 0
        assert row.costs["offload"]["out_seconds"] > 0
        assert row.uniform_seconds is None or row.micro_batch_seconds <= row.uniform_seconds
        assert "of activations of" in step.memory_plan(row)
        assert len(step.memory_plan_columns(row)[0].values) == 5
    view = runs.load(session.home / found.id)
    assert [row["stage"] for row in runs.document(view)["memory_plans"]] == list(range(stages))


@pytest.mark.parametrize("documents", ["joined", "masked"])
@pytest.mark.parametrize("length", [64, 8])  # of 8 tokens, tensors are so small that few leave
def test_the_least_by_formula_is_a_budget_that_a_plan_keeps_to(
    session: Session, length: int, documents: str
) -> None:
    values = {"model__layers": 10, "data__sequence_length": length, "data__documents": documents}
    config = small(**(BASE | values))
    (row,) = run(session, values | {"memory__budget_gib": (least_budget(config) + 1) / 2**30}).memory_plans
    assert row.peak_bytes == row.least_bytes == least_budget(config)
    away, formula = row.costs["offload"], costs_of_block(config)["offload"]
    assert (away["resident"], away["away"]) == (formula.resident, formula.away)


def test_what_only_ranks_find_out_breaks_a_rule_as_well() -> None:
    assert ending_of_exception(too_small(1e-6, 10**6)) is Ending.ILLEGAL
    for least in (123_456_789_123, 1_325_400_063, 200_123):
        named = float(str(too_small(1e-6, least)).rpartition(" ")[2])
        assert least <= int(named * 2**30) <= 1.001 * least


def test_a_budget_for_all_keeps_all(session: Session) -> None:
    (row,) = run(session, {"memory__budget_gib": 4.0}).memory_plans
    assert row.actions == ["keep"] * LAYERS
    assert row.uniform == "keep"


def test_less_than_the_least_is_refused_with_the_least_that_would_do(session: Session) -> None:
    config = small(**BASE)
    least = least_budget(config)
    outcome, _ = execute(session, config.with_values({"memory.budget_gib": 0.9 * least / 2**30}))
    assert outcome.ending is Ending.ILLEGAL
    named = float(outcome.reason.rpartition(" ")[2])
    assert least <= named * 2**30 <= 1.01 * least
    check_budget(config.with_values({"memory.budget_gib": named}))


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"memory": {"block_actions": ["keep"]}}, "memory.block_actions", "one action for each"),
        (
            {"memory": {"budget_gib": 1.0, "block_actions": ["keep"] * 4}},
            "memory.budget_gib",
            "leave one out",
        ),
        ({"memory": {"budget_gib": 1.0, "recompute": "full"}}, "memory.recompute", "set it to none"),
        ({"memory": {"budget_gib": 1.0, "offload": "both"}}, "memory.offload", "set it to none or optimizer"),
        (
            {"memory": {"budget_gib": 1.0}, "model": {"experts": 4}},
            "memory.budget_gib",
            "change from step to step",
        ),
        (
            {"memory": {"budget_gib": 1.0}, "parallel": {"pp": 2}, "schedule": {"kind": "zb_h1"}},
            "memory.budget_gib",
            "second backward",
        ),
        (
            {"memory": {"budget_gib": 1.0}, "parallel": {"tp": 2, "tp_regather": True}},
            "memory.budget_gib",
            "tp_regather",
        ),
        (
            {
                "memory": {"budget_gib": 1.0},
                "parallel": {"pp": 2},
                "schedule": {"kind": "interleaved", "chunks": 2},
            },
            "memory.budget_gib",
            "one stage a rank",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(values: dict[str, Any], field: str, words: str) -> None:
    found = list(problems(parse(values)))
    assert [problem.field for problem in found] == [field]
    assert words in str(found[0])


def test_a_plan_holds_for_the_micro_batches_that_a_run_began_with() -> None:
    config = small(memory__budget_gib=1.0)
    with pytest.raises(InputError, match="was made for the old value"):
        live_changes.change_config(config, {"batch.micro_batch": 2})
    with pytest.raises(InputError, match="decided when a run starts"):
        live_changes.change_config(config, {"memory.budget_gib": 2.0})
    four = ["full", "keep", "keep", "disk"]
    assert live_changes.change_config(small(), {"memory.block_actions": four}).memory.block_actions == four


def test_what_computes_again_is_never_taken_to_be_faster() -> None:
    """On a busy machine it may be measured so; everything fits here, and everything is kept."""
    usual = dict.fromkeys(block_plan.ACTIONS, 1.0)
    saved = dict.fromkeys(block_plan.ACTIONS, 1000)
    block = {action: block_plan.Cost(1000, 1000, 1000, 0.0, 0.0) for action in block_plan.ACTIONS}
    hasty = usual | {"full": 0.7, "offload": 0.5}
    found = BlockMeasurement(forward=hasty, backward=hasty, saved=saved, out=usual, back=usual)
    plan = block_plan.best([add_seconds(block, found)] * 4, block_plan.StageOverhead(), 1e9)
    assert plan is not None and plan.actions == ("keep",) * 4
