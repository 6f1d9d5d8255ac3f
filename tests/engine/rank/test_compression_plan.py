"""Plans on real ranks: one for all of them, as many bytes as it says, within budget, and there after a resume."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from engine.checkpoint.checkpoint_folder import last_of, read_manifest
from engine.config.validation import rules
from engine.footprint import footprint
from engine.rank.compression_plan import WATCHED, next_plan
from engine.run import run_folder
from engine.run.outcome import Ending
from engine.session import Session
from profilers.analysis.communication import communication_rows
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords
from profilers.records.schema import Event
from tests.support.runs import execute, small

pytestmark = pytest.mark.drawn(3, of="plans of layers")

#: Two embeddings of 1 Mi values beside blocks of less than half of that.
MODEL: dict[str, Any] = {
    "model__vocabulary": 8192,
    "model__hidden": 128,
    "model__layers": 2,
    "model__ffn_hidden": 256,
}
#: The budget of the paper: there is something to choose for every method.
PLANNED: dict[str, Any] = {
    "compression__plan": "l_greco",
    "compression__plan_every": 50,
    "compression__plan_budget": "error",
}
METHODS: dict[str, dict[str, Any]] = {
    "topk": {"compression__method": "topk", "compression__ratio": 0.02},
    "randomk": {"compression__method": "randomk", "compression__ratio": 0.05},
    "int4": {"compression__method": "int4"},
    "powersgd": {"compression__method": "powersgd", "compression__rank": 4},
}
STEPS = 14


def run(session: Session, **values: Any) -> tuple[RunSummary, RunRecords]:
    outcome, summary = execute(session, small(**{"parallel__dp": 2, "train__steps": STEPS} | MODEL | values))
    assert outcome.ending is Ending.COMPLETED, outcome
    return summary, RunRecords(session.home / summary.id / run_folder.RECORDS)


def plans_of(records: RunRecords) -> list[Event]:
    return [event for event in records.events(0) if event.kind == "plan"]


def sent_in(records: RunRecords, step: int) -> float:
    """Bytes on the wire of one step, as the calls of all ranks were recorded, for one of them."""
    tables = [records.table(rank, "comm") for rank in records.ranks()]
    rows = communication_rows(tables, np.array([step]), len(tables), backend="gloo")
    sizes = [row.wire_bytes for row in rows if row.axis.startswith("dp")]
    assert sizes and None not in sizes
    return sum(size for size in sizes if size is not None)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_recorded_bytes_fall_as_the_plan_says_and_its_errors_keep_the_budget(
    session: Session, method: dict[str, Any]
) -> None:
    _, records = run(session, **method, **PLANNED)
    (event,) = plans_of(records)
    told = event.data
    assert event.data["step"] == WATCHED
    before, after = sent_in(records, WATCHED - 1), sent_in(records, WATCHED)
    assert before == pytest.approx(told["bytes_before"], rel=0.01)
    assert after == pytest.approx(told["bytes_after"], rel=0.01)
    assert after / before == pytest.approx(told["bytes_after"] / told["bytes_uniform"], rel=0.05)
    assert told["bytes_after"] < 0.95 * told["bytes_before"]
    assert 0 < told["error"] <= told["budget"] == told["error_uniform"]
    assert len(set(told["layers"].values())) > 1


def test_a_large_embedding_leaves_much_to_win(session: Session) -> None:
    """At least 1.5 times fewer bytes than one value for all whose error is as large as the budget."""
    for name in ("topk", "powersgd"):
        _, records = run(session, **METHODS[name], **PLANNED)
        (event,) = plans_of(records)
        assert sent_in(records, WATCHED - 1) >= 1.5 * sent_in(records, WATCHED)
        assert event.data["error"] <= event.data["error_uniform"]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_by_loss_a_plan_saves_what_costs_no_more_or_keeps_one_value(
    session: Session, method: dict[str, Any]
) -> None:
    summary, records = run(session, **method, **PLANNED | {"compression__plan_budget": "loss"})
    (event,), (plan,) = plans_of(records), summary.plans
    told = event.data
    assert told["budget_of"] == plan.budget_of == "loss"
    assert plan.effect is not None and plan.effect_uniform is not None
    assert 0 < plan.effect <= plan.effect_uniform
    if not plan.layers:
        assert told["bytes_after"] == told["bytes_uniform"]
        assert plan.effect == plan.effect_uniform
        return
    assert plan.effect <= told["budget"] == pytest.approx(0.9 * plan.effect_uniform)
    assert told["bytes_after"] < 0.96 * told["bytes_uniform"]
    assert sent_in(records, WATCHED) == pytest.approx(told["bytes_after"], rel=0.01)


def test_all_ranks_follow_one_plan_over_every_kind_of_part(session: Session) -> None:
    """Each of four stages and tensor halves plans with the others; parts of a layer get one value."""
    layout = {"parallel__dp": 2, "parallel__tp": 2, "parallel__pp": 2, "checkpoint__every_steps": STEPS}
    summary, records = run(session, **layout, **METHODS["topk"], **PLANNED)
    (event,) = plans_of(records)
    names = set(event.data["layers"])
    assert {"embedding.weight", "head.weight"} < names
    assert {name.split(".")[1] for name in names if name.startswith("blocks.")} == {"0", "1"}
    assert sent_in(records, WATCHED) == pytest.approx(event.data["bytes_after"], rel=0.01)
    checkpoint = last_of(session.home / summary.id)
    manifest = read_manifest(checkpoint) if checkpoint else None
    assert manifest is not None
    assert manifest.plan == {"method": "topk", "default": 0.02, "values": event.data["layers"]}


@pytest.mark.drawn(1)
@pytest.mark.parametrize("method", ["topk", "powersgd"])
def test_a_plan_survives_a_resume(session: Session, method: str) -> None:
    straight, _ = run(session, **METHODS[method], **PLANNED)
    saving, _ = run(session, **METHODS[method], **PLANNED, train__steps=12, checkpoint__every_steps=12)
    folder = str(session.home / saving.id)
    resumed, _ = run(session, **METHODS[method], **PLANNED, train__resume=folder)
    assert resumed.losses == straight.losses[12:]
    (plan,) = resumed.plans
    assert (plan.step, plan.taken_from, plan.layers) == (12, saving.id, saving.plans[0].layers)
    forgetful, _ = run(session, **METHODS[method], train__resume=folder)
    assert forgetful.losses[1:] != straight.losses[13:], "the plan does not matter here"


def test_a_plan_for_another_default_is_not_taken_up(session: Session) -> None:
    saving, _ = run(session, **METHODS["topk"], **PLANNED, train__steps=12, checkpoint__every_steps=12)
    other = METHODS["topk"] | {"compression__ratio": 0.03}
    _, records = run(session, **other, **PLANNED, train__resume=str(session.home / saving.id))
    _, fresh = run(session, **other)
    assert sent_in(records, 13) == sent_in(fresh, 13)


def test_layers_that_the_configuration_sets_are_left_to_it(session: Session) -> None:
    given = {"compression__layers": {"head.weight": 0.05, "blocks.0.*": "none"}}
    summary, records = run(session, **METHODS["topk"], **PLANNED, **given)
    (event,) = plans_of(records)
    named = set(event.data["layers"])
    assert "embedding.weight" in named
    assert not any(name == "head.weight" or name.startswith("blocks.0.") for name in named)
    assert "blocks.0.attention.query.weight" in summary.left_alone


def test_a_plan_is_in_the_summary(session: Session) -> None:
    summary, records = run(session, **METHODS["int4"], **PLANNED | {"compression__plan_every": 4})
    assert [plan.step for plan in summary.plans] == [4, 8, 10, 12]
    told = json.loads((session.home / summary.id / run_folder.SUMMARY).read_text())["plans"][-1]
    assert told["layers"] == plans_of(records)[-1].data["layers"]
    assert told["seconds"] > 0


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        ({"compression__method": "fp16"}, "method to one of int8, int4, topk, randomk, powersgd"),
        ({"compression__method": "none"}, "set plan to none"),
    ],
)
def test_a_plan_needs_something_to_choose(values: dict[str, Any], remedy: str) -> None:
    config = small(parallel__dp=2, **values, **PLANNED)
    found = [one for one in rules.problems(config) if one.field == "compression.plan"]
    assert len(found) == 1
    assert remedy in str(found[0])


def test_what_is_summed_up_for_a_plan_counts_as_memory() -> None:
    config = small(parallel__dp=2, **METHODS["topk"])
    watched = config.with_values({"compression.plan": "l_greco"})
    added = footprint.largest(watched).buffer_bytes - footprint.largest(config).buffer_bytes
    assert added == 4 * footprint.largest(config).parameters


def test_there_is_a_first_plan_early_and_then_one_every_so_many_steps() -> None:
    def planned(every: int, steps: int) -> list[int]:
        return [step for step in range(1, steps) if next_plan(step - 1, every) == step]

    assert planned(200, 500) == [10, 200, 400]
    assert planned(4, 17) == [4, 8, 10, 12, 16]
    assert planned(1, 4) == [1, 2, 3]
