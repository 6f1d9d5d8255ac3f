"""What is sent, by whom and how much: the recorder's numbers against formulas."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.presets import PRESETS
from engine.session import Session
from profilers.model.run_summary import RunSummary
from tests.support.runs import execute, small

pytestmark = pytest.mark.drawn(6, of="bytes on the wire of real runs")

TINY = PRESETS["tiny"]
SEQUENCES, LENGTH = 8, 64
STEPS = {"train__steps": 5, "train__warmup": 2, "train__validation_batches": 0}


def run(session: Session, **values: Any) -> RunSummary:
    outcome, summary = execute(session, small(**STEPS | values))
    assert outcome.good, outcome
    return summary


def of(summary: RunSummary, axis: str, operation: str) -> dict[str, Any]:
    """The one row of an axis and operation, as in ``--json``."""
    rows = [
        row
        for row in summary.as_dict()["communication"]
        if (row["axis"], row["operation"]) == (axis, operation)
    ]
    assert len(rows) == 1, rows
    return rows[0]


def test_data_parallel_sends_every_gradient_once(session: Session) -> None:
    row = of(run(session, parallel__dp=2), "dp", "all_reduce")
    assert row["bytes"] == 4 * TINY.parameters
    assert row["seconds"] > 0
    assert row["bus_bandwidth"] == pytest.approx(row["bytes"] / row["seconds"], rel=0.2)


def test_small_buckets_send_the_same_bytes_in_more_calls(session: Session) -> None:
    one = of(run(session, parallel__dp=2), "dp", "all_reduce")
    many = of(run(session, parallel__dp=2, overlap__bucket_mb=1), "dp", "all_reduce")
    assert many["bytes"] == one["bytes"]
    assert many["calls"] > one["calls"]


def test_fp16_halves_the_bytes(session: Session) -> None:
    row = of(run(session, parallel__dp=2, compression__method="fp16"), "dp", "all_reduce")
    assert row["bytes"] == 2 * TINY.parameters


def test_top_k_sends_values_and_places(session: Session) -> None:
    summary = run(session, parallel__dp=2, compression__method="topk", compression__ratio=0.01)
    row = of(summary, "dp", "all_gather")
    assert row["calls"] == 1
    assert row["bytes"] == 2 * 8 * int(0.01 * TINY.parameters)
    assert 4 * TINY.parameters > 20 * row["bytes"]


def test_tensor_parallel_sends_activations(session: Session) -> None:
    summary = run(session, parallel__tp=2)
    activation = 4 * SEQUENCES * LENGTH * TINY.hidden
    # Two gathers and two scatters a block, once forward and once backward; one gather before the head, whose
    # gradient is scattered; the embedding scatters, its gradient is gathered.
    pairs = 4 * TINY.layers + 2
    # The loss gathers three numbers a token from each rank.
    loss = 2 * 3 * 4 * SEQUENCES * LENGTH
    assert of(summary, "tp", "all_gather")["bytes"] == pairs * activation + loss
    assert of(summary, "tp", "reduce_scatter")["bytes"] == pairs * activation


def test_gathering_again_sends_more_in_backward(session: Session) -> None:
    plain, again = (
        run(session, parallel__tp=2, parallel__tp_regather=regather) for regather in (False, True)
    )
    activation = 4 * SEQUENCES * LENGTH * TINY.hidden
    more = of(again, "tp", "all_gather")["bytes"] - of(plain, "tp", "all_gather")["bytes"]
    # Once for query, key and value, once for gate and up; and once for the head.
    assert more == (2 * TINY.layers + 1) * activation
    assert of(again, "tp", "reduce_scatter")["bytes"] == of(plain, "tp", "reduce_scatter")["bytes"]


def test_pipeline_sends_one_activation_and_one_gradient_a_micro_batch(session: Session) -> None:
    summary = run(session, parallel__pp=2)
    activation = 4 * SEQUENCES * LENGTH * TINY.hidden
    sent, received = of(summary, "pp", "send"), of(summary, "pp", "recv")
    assert (sent["calls"], sent["bytes"]) == (SEQUENCES, activation)
    assert (received["calls"], received["bytes"]) == (SEQUENCES, activation)
    for row in (sent, received):
        assert (row["seconds"], row["bus_bandwidth"], row["expected_seconds"]) == (None, None, None)
    assert summary.message_seconds_reason is not None
    assert summary.message_seconds_reason.startswith("send and recv: ")
    assert summary.pipeline is not None
    assert summary.pipeline.transfer_seconds > 0


def test_zero_1_scatters_gradients_and_gathers_weights(session: Session) -> None:
    summary = run(session, parallel__dp=2, parallel__zero_stage=1, overlap__bucket_mb=1)
    scattered, gathered = of(summary, "dp", "reduce_scatter"), of(summary, "dp", "all_gather")
    assert scattered["bytes"] == gathered["bytes"] == pytest.approx(4 * TINY.parameters, rel=0.01)
    assert scattered["calls"] == gathered["calls"] > 1
    # Half of it leaves a rank of two, where gloo's own would send all of it; headers are small.
    assert scattered["wire_bytes"] == pytest.approx(scattered["bytes"] / 2, rel=0.01)
    assert scattered["seconds"] > 0
    assert 0 <= scattered["exposed_seconds"] <= scattered["seconds"]
    assert summary.message_seconds_reason is None


def test_zero_3_gathers_every_micro_batch_and_scatters_once(session: Session) -> None:
    summary = run(session, parallel__dp=2, parallel__zero_stage=3, batch__micro_batch=4)
    gathered, scattered = of(summary, "dp", "all_gather"), of(summary, "dp", "reduce_scatter")
    padded = 4 * TINY.parameters
    assert scattered["bytes"] == pytest.approx(padded, rel=0.01)
    assert gathered["bytes"] == pytest.approx(2 * padded, rel=0.06)


def test_reducing_every_micro_batch_scatters_once_for_each(session: Session) -> None:
    values = {"parallel__dp": 2, "parallel__zero_stage": 2, "batch__micro_batch": 1}
    once, always = (
        run(session, **values, parallel__reduce_every_micro_batch=always) for always in (False, True)
    )
    micro_batches = SEQUENCES // 2
    scattered = of(always, "dp", "reduce_scatter")
    assert scattered["bytes"] == pytest.approx(micro_batches * 4 * TINY.parameters, rel=0.01)
    assert scattered["bytes"] == micro_batches * of(once, "dp", "reduce_scatter")["bytes"]
    assert of(always, "dp", "all_gather")["bytes"] == of(once, "dp", "all_gather")["bytes"]


def test_replicas_of_slices_are_summed_over_once(session: Session) -> None:
    values = {
        "parallel__dp": 4,
        "parallel__zero_stage": 2,
        "parallel__shard_ranks": 2,
        "batch__micro_batch": 1,
    }
    rows = [
        row
        for row in run(session, **values, parallel__reduce_every_micro_batch=True).as_dict()["communication"]
        if row["operation"] == "all_reduce"
    ]
    assert max(row["bytes"] for row in rows) == pytest.approx(4 * TINY.parameters / 2, rel=0.01)


def test_in_bf16_what_stays_fp32_is_averaged_apart(session: Session) -> None:
    summary = run(session, parallel__dp=2, parallel__zero_stage=3, batch__micro_batch=4, precision="bf16")
    norms = (2 * TINY.layers + 1) * TINY.hidden
    assert of(summary, "dp", "all_reduce")["bytes"] == 4 * norms
    matrices = TINY.parameters - norms
    assert of(summary, "dp", "all_gather")["bytes"] == pytest.approx(2 * 2 * matrices, rel=0.06)
    assert of(summary, "dp", "reduce_scatter")["bytes"] == pytest.approx(4 * matrices, rel=0.01)


def test_phases_sum_to_the_step_and_waits_are_exposed(session: Session) -> None:
    for values in ({"parallel__dp": 2}, {"parallel__tp": 2}, {"parallel__pp": 2, "parallel__zero_stage": 3}):
        summary = run(session, **values)
        document = summary.as_dict()
        assert sum(document["phases"].values()) + document["between_seconds"] == pytest.approx(
            document["step_seconds"]["mean"]
        )
        assert document["phases"]["forward"] > 0
        waited = "bubble" if "parallel__pp" in values else "communication_exposed"
        assert document["phases"][waited] > 0


def test_recording_can_be_left_out(session: Session) -> None:
    assert run(session, parallel__dp=2, profile__collectives=False).as_dict()["communication"] == []


@pytest.mark.parametrize(("method", "rate"), [("lsh", 0.13), ("lsh", 0.4), ("lsh_int8", 0.2)])
def test_buckets_of_expert_tokens_send_the_rate_of_the_bytes(
    session: Session, method: str, rate: float
) -> None:
    """All ranks together, over the same run in which all tokens travel; how many go to each expert is told as well."""
    experts = {"model__experts": 4, "parallel__dp": 2, "parallel__ep": 2, "batch__micro_batch": 4}
    bucketed = run(session, **experts, compression__experts=method, compression__expert_rate=rate)
    plain = run(session, **experts)
    sent, whole = (
        sum(row["bytes"] for row in one.as_dict()["communication"] if row["axis"] == "ep")
        for one in (bucketed, plain)
    )
    counts = TINY.layers * 4 * 8
    assert (sent - counts) / (whole - counts) == pytest.approx(rate, rel=0.01)
    each = 4 * TINY.hidden / (TINY.hidden + 4) if method == "lsh_int8" else 1
    for row in bucketed.as_dict()["experts"]:
        assert row["sent_fraction"] == pytest.approx(rate * each, rel=0.01)
        assert 0 < row["residual"] < 1
    assert all(row["sent_fraction"] is None for row in plain.as_dict()["experts"])


def test_buckets_are_the_same_when_forwards_are_done_again(session: Session) -> None:
    experts = {"model__experts": 4, "parallel__dp": 2, "parallel__ep": 2, "compression__experts": "lsh"}
    losses = [run(session, **experts, **more).losses for more in ({}, {}, {"memory__recompute": "full"})]
    assert losses[0] == losses[1] == losses[2]
