"""Outer loops in whole runs: what replicas take over, how old it is, what they send, and that layouts agree."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.presets import PRESETS
from engine.session import Session
from tests.engine.runs.test_communication import of
from tests.support.engine.local_sgd_runs import averages, run

pytestmark = pytest.mark.drawn(6, of="outer loops")

TINY = PRESETS["tiny"]
METHODS = ("local", "diloco", "streaming", "co2")
VARIANTS = ("paper", "delayed", "keep_local")
#: Layouts of two replicas; the global batch is the same.
LAYOUTS: dict[str, dict[str, Any]] = {
    "zero 1": {"parallel__zero_stage": 1},
    "tp2": {"parallel__tp": 2},
    "pp2": {"parallel__pp": 2},
    "two ranks a replica": {"parallel__dp": 4, "outer__replicas": 2},
    "two ranks a replica, zero 3": {"parallel__dp": 4, "outer__replicas": 2, "parallel__zero_stage": 3},
    "two ranks a replica, zero 1": {"parallel__dp": 4, "outer__replicas": 2, "parallel__zero_stage": 1},
    "cp2": {"parallel__cp": 2},
}


@pytest.mark.drawn(1)
@pytest.mark.parametrize("method", ["co2", "streaming"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_of_a_replica_train_alike(session: Session, method: str, layout: dict[str, Any]) -> None:
    values = {"outer__method": method, "outer__gap": "scalar", "outer__momentum": 0.2, "outer__period": 4}
    values |= {"train__steps": 10}
    plain, other = run(session, **values), run(session, **values | layout)
    assert other.losses == pytest.approx(plain.losses, abs=2e-4)
    assert other.gradient_norms == pytest.approx(plain.gradient_norms, rel=2e-3)
    assert other.validation_loss == pytest.approx(plain.validation_loss, abs=2e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_co2_takes_over_what_is_one_round_old(session: Session, variant: str) -> None:
    summary = run(session, outer__method="co2", outer__variant=variant, train__steps=14)
    for rank in range(2):
        found = averages(session, summary, rank)
        # Four whole rounds, one of two steps at the end, and the last average.
        assert [average.round for average in found] == [1, 2, 3, 4, 5]
        assert [average.average_of for average in found] == [0, 1, 2, 3, 4]
        assert {average.staleness for average in found} == {1}
        assert [average.step for average in found[:3]] == [5, 8, 11]
    assert summary.outer is not None
    assert (summary.outer.least_staleness, summary.outer.most_staleness) == (1, 1)
    assert summary.as_dict()["outer"]["averages"] == 5


@pytest.mark.parametrize("method", ["local", "diloco"])
def test_synchronous_averages_are_of_the_running_round(session: Session, method: str) -> None:
    found = averages(session, run(session, outer__method=method, train__steps=6))
    assert [(average.step, average.staleness, average.delay_steps) for average in found] == [
        (2, 0, 0),
        (5, 0, 0),
    ]


def test_fragments_are_sent_at_steps_of_their_own(session: Session) -> None:
    values = {"outer__fragments": 2, "outer__period": 4, "outer__overlap": 1, "train__steps": 9}
    summary = run(session, outer__method="streaming", **values)
    found = averages(session, summary)
    # Fragment 0 is sent after step 1 of each round, fragment 1 after its last one; both are taken over a step later.
    sent = [(average.step, average.fragment, average.delay_steps) for average in found]
    assert sent[:4] == [(2, 0, 1), (4, 1, 1), (6, 0, 1), (8, 1, 1)]
    assert [fragment for _, fragment, _ in sent[4:]] == [0, 1], "both once more at the end"


@pytest.mark.parametrize("method", METHODS)
def test_a_round_sends_what_a_step_sends_without_one(session: Session, method: str) -> None:
    summary = run(session, outer__method=method, outer__period=4, train__steps=16, train__warmup=0)
    row = of(summary, "outer", "all_reduce")
    rounds = row["bytes"] * 16 / (4 * TINY.parameters)
    # Of whole rounds: neither the first steps, in which nothing arrives yet, nor what is sent after the last one.
    assert rounds == pytest.approx(4)
    assert {one.axis for one in summary.communication} == {"outer"}
    assert row["seconds"] > 0
    assert 0 <= row["exposed_seconds"] <= row["seconds"]


def test_with_zero_1_slices_are_scattered_updated_and_gathered(session: Session) -> None:
    values = {"outer__method": "co2", "train__steps": 10}
    whole, sliced = (run(session, **values, parallel__zero_stage=zero) for zero in (0, 1))
    rows = [of(sliced, "outer", operation) for operation in ("reduce_scatter", "all_gather")]
    reduced = of(whole, "outer", "all_reduce")
    assert {row["bytes"] / row["calls"] for row in rows} == {4 * TINY.parameters}
    sent = sum(row["wire_bytes"] / row["calls"] for row in rows)
    assert sent == pytest.approx(reduced["wire_bytes"] / reduced["calls"], rel=0.01)
    assert sliced.losses == pytest.approx(whole.losses, abs=1e-5)


def test_rounds_of_one_step_stay_near_data_parallelism(session: Session) -> None:
    """AdamW on each half and the mean of both is not AdamW on the mean, but near."""
    plain = run(session, train__steps=10)
    local = run(session, outer__method="local", outer__period=1, train__steps=10)
    assert local.losses[0] == pytest.approx(plain.losses[0], abs=1e-6)
    assert local.losses != plain.losses
    assert local.losses == pytest.approx(plain.losses, rel=0.03)


def test_one_validated_model_is_left(session: Session) -> None:
    """With weights put together at the end the held-out loss is that of one model, better than each replica's own."""
    never = run(session, outer__method="local", outer__period=1000, train__steps=12)
    assert [average.step for average in averages(session, never)] == [11]
    assert never.validation_loss is not None
    plain = run(session, train__steps=12)
    assert never.validation_loss == pytest.approx(plain.validation_loss, rel=0.1)
