"""Plans under ZeRO on real ranks: each slice in its layer's own bits, as many bytes as the plan says, and the plan of
plain data parallelism.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.config.knobs.catalogue import acts
from engine.config.validation import rules
from engine.footprint import footprint
from engine.rank.compression_plan import WATCHED
from engine.session import Session
from profilers.analysis.communication import communication_rows
from profilers.records.reader import RunRecords
from tests.engine.rank.test_compression_plan import METHODS, PLANNED, plans_of, run
from tests.support.runs import small

pytestmark = pytest.mark.drawn(2, of="plans under ZeRO")

#: Slices of every matrix are whole rows of scales, on two ranks too.
SIZES: dict[str, Any] = {"model__vocabulary": 2048, "compression__bucket_values": 64}
#: By error, which leaves something to win for integers.
INT4: dict[str, Any] = METHODS["int4"] | PLANNED | SIZES | {"compression__plan_budget": "error"}
STAGES = (1, 2, 3)


def sent_as_gradients(records: RunRecords, step: int) -> float:
    """Bytes on the wire of one step but for the weights, as the calls of all ranks were recorded, for one of them."""
    tables = [records.table(rank, "comm") for rank in records.ranks()]
    rows = communication_rows(tables, np.array([step]), len(tables), backend="gloo")
    sizes = [row.wire_bytes for row in rows if row.axis.startswith("dp") and row.operation != "all_gather"]
    assert sizes and None not in sizes
    return sum(size for size in sizes if size is not None)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("stage", STAGES)
def test_recorded_bytes_are_those_of_the_plan(session: Session, stage: int) -> None:
    _, records = run(session, parallel__zero_stage=stage, **INT4)
    (event,) = plans_of(records)
    told = event.data
    assert sent_as_gradients(records, WATCHED - 1) == pytest.approx(told["bytes_uniform"], rel=0.01)
    assert sent_as_gradients(records, WATCHED) == pytest.approx(told["bytes_after"], rel=0.01)
    assert told["bytes_after"] < 0.95 * told["bytes_before"]
    assert 0 < told["error"] <= told["budget"] == told["error_uniform"]
    assert len(set(told["layers"].values())) > 1


@pytest.mark.drawn(2)
@pytest.mark.parametrize("micro", [{}, {"parallel__reduce_every_micro_batch": True}])
def test_gradients_that_are_sent_with_every_micro_batch_count_as_often(
    session: Session, micro: dict[str, Any]
) -> None:
    batches = {"batch__global_batch": 8, "batch__micro_batch": 2, "parallel__zero_stage": 2}
    _, records = run(session, **batches, **micro, **INT4)
    (event,) = plans_of(records)
    assert sent_as_gradients(records, WATCHED) == pytest.approx(event.data["bytes_after"], rel=0.01)


@pytest.mark.parametrize("budget", ["error", "loss"])
def test_the_plan_is_that_of_plain_data_parallelism(session: Session, budget: str) -> None:
    """Until the first plan all gradients are sent as they are, so that every stage watches the same ones."""
    asked = INT4 | {"compression__start_step": WATCHED, "compression__plan_budget": budget}
    events = [plans_of(run(session, parallel__zero_stage=stage, **asked)[1])[0] for stage in (0, *STAGES)]
    plain = events[0].data
    assert plain["layers"] if budget == "error" else plain["effect"] > 0
    for event in events[1:]:
        assert event.data["layers"] == plain["layers"]
        for key in ("error", "error_uniform", "effect", "effect_uniform", "budget"):
            assert event.data[key] == pytest.approx(plain[key], rel=1e-4), key
        assert event.data["bytes_after"] == pytest.approx(plain["bytes_after"] / 2, rel=0.02), (
            "one way, not two"
        )


@pytest.mark.drawn(1)
@pytest.mark.parametrize("stage", STAGES)
def test_a_plan_survives_a_resume_under_zero(session: Session, stage: int) -> None:
    asked = INT4 | {"parallel__zero_stage": stage}
    straight, _ = run(session, **asked)
    saving, _ = run(session, **asked, train__steps=12, checkpoint__every_steps=12)
    folder = str(session.home / saving.id)
    resumed, records = run(session, **asked, train__resume=folder)
    assert resumed.losses == straight.losses[12:]
    (plan,) = resumed.plans
    assert (plan.step, plan.taken_from, plan.layers) == (12, saving.id, saving.plans[0].layers)
    sent = saving.plans[0].bytes_after
    assert sent_as_gradients(records, 13) == pytest.approx(sent, rel=0.01)


def test_every_kind_of_part_follows_under_hybrid_sharding_and_tensor_parallelism(session: Session) -> None:
    layout = {"parallel__dp": 4, "parallel__shard_ranks": 2, "parallel__tp": 1, "parallel__zero_stage": 3}
    _, records = run(session, **INT4 | layout)
    (event,) = plans_of(records)
    assert {"embedding.weight", "head.weight"} < set(event.data["layers"])


def test_methods_that_zero_has_not_are_refused_in_one_line() -> None:
    for method in ("topk", "powersgd"):
        config = small(parallel__dp=2, parallel__zero_stage=2, **METHODS[method], **PLANNED)
        (found,) = rules.problems(config)
        assert found.field == "compression.method"
        assert method in str(found)
        assert "needs zero_stage 0" in str(found)
        assert "method to int8 or int4" in str(found)
    assert not list(
        rules.problems(small(parallel__dp=2, parallel__zero_stage=2, **METHODS["int4"], **PLANNED))
    )


@pytest.mark.parametrize("stage", (0, *STAGES))
def test_a_search_turns_plans_under_zero(stage: int) -> None:
    config = small(parallel__dp=2, parallel__zero_stage=stage, **METHODS["int4"], **PLANNED)
    values = config.flat()
    for key in ("plan", "plan_every", "plan_budget", "plan_alpha"):
        assert acts(f"compression.{key}", values)
    other = values | {"compression.method": "topk"}
    assert acts("compression.plan", other) == (stage == 0)


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_summed_up_for_a_plan_counts_as_memory_under_zero(stage: int) -> None:
    config = small(parallel__dp=2, parallel__zero_stage=stage, **METHODS["int4"])
    watched = config.with_values({"compression.plan": "l_greco"})
    added = footprint.largest(watched).buffer_bytes - footprint.largest(config).buffer_bytes
    kept = footprint.largest(config.with_values({"compression.error_feedback": False})).buffer_bytes
    assert added == footprint.largest(config).buffer_bytes - kept, "as much as the memory of errors"
