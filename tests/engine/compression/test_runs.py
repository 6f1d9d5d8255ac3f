"""Compression in whole runs: what a run sends, what it tells, and that it still learns."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.errors import LayoutError
from engine.config.presets import PRESETS
from engine.config.validation.rules import check
from engine.session import Session
from profilers.collectives.wire_bytes import wire_bytes
from profilers.model.run_summary import RunSummary
from tests.support.runs import execute, small

TINY = PRESETS["tiny"]
NORMS = (2 * TINY.layers + 1) * TINY.hidden
MATRICES = TINY.parameters - NORMS
#: One bucket, compressed from the first step on.
WHOLE = {
    "parallel__dp": 2,
    "overlap__bucket_mb": 100,
    "compression__start_step": 0,
    "train__validation_batches": 0,
}


def run(session: Session, **values: Any) -> RunSummary:
    outcome, summary = execute(session, small(**WHOLE | values))
    assert outcome.good, outcome
    return summary


def sent(summary: RunSummary) -> dict[str, float]:
    """Payload bytes of a step over dp, by operation."""
    rows = summary.as_dict()["communication"]
    return {row["operation"]: row["bytes"] for row in rows if row["axis"] == "dp"}


def test_coarse_integers_go_there_and_back(session: Session) -> None:
    """Matrices lie between norms, which are left alone: each run of them is dealt to both ranks in whole words."""
    summary = run(session, compression__method="int8")
    found = sent(summary)
    assert found["all_reduce"] == 4 * NORMS
    assert found["all_to_all"] == found["all_gather"] == pytest.approx(MATRICES * (1 + 4 / 1024), rel=0.002)
    for row in summary.communication:
        size = wire_bytes(row.operation, "gloo", None, 2, [row.bytes / row.calls])  # type: ignore[arg-type]
        assert row.axis != "dp" or (size is not None and row.wire_bytes == pytest.approx(row.calls * size[0]))


@pytest.mark.parametrize(("method", "bits"), [("int4", 4), ("sign", 1)])
def test_fewer_bits_are_fewer_bytes(session: Session, method: str, bits: int) -> None:
    found = sent(run(session, compression__method=method))
    assert (
        found["all_to_all"]
        == found["all_gather"]
        == pytest.approx(MATRICES * (bits / 8 + 4 / 1024), rel=0.01)
    )


def test_powersgd_sends_factors(session: Session) -> None:
    found = sent(run(session, compression__method="powersgd", compression__rank=2))
    hidden, width, kv = TINY.hidden, TINY.ffn_hidden, TINY.kv_heads * TINY.head_dim
    block = 2 * (hidden + hidden) + 2 * (hidden + kv) + 3 * (hidden + width)
    sides = TINY.layers * block + 2 * (TINY.vocabulary + hidden)
    assert found == {"all_reduce": 4 * (2 * sides + NORMS)}


def test_random_k_sends_values_alone(session: Session) -> None:
    found = sent(run(session, compression__method="randomk", compression__ratio=0.05))
    assert found == {"all_reduce": 4 * int(0.05 * TINY.parameters)}


def test_it_starts_when_asked(session: Session) -> None:
    """The only measured steps are before the start, then after it."""
    steps = {"train__steps": 4, "train__warmup": 2, "compression__method": "bf16"}
    assert sent(run(session, **steps, compression__start_step=4)) == {"all_reduce": 4 * TINY.parameters}
    assert sent(run(session, **steps, compression__start_step=2)) == {"all_reduce": 2 * TINY.parameters}


def test_layers_have_values_of_their_own(session: Session) -> None:
    values = {"compression__method": "topk", "compression__ratio": 0.01}
    layers = {"*norm*": "none", "*feed_forward.down*": 0.1}
    summary = run(session, **values, compression__layers=layers)
    down = TINY.layers * TINY.hidden * TINY.ffn_hidden
    expected = 2 * 8 * (0.01 * (MATRICES - down) + 0.1 * down)
    assert sent(summary)["all_gather"] == pytest.approx(expected, rel=0.01)
    assert set(summary.left_alone.values()) == {"left alone as asked"}


def test_what_is_left_alone_is_listed(session: Session) -> None:
    summary = run(session, compression__method="sign", parallel__pp=2)
    assert len(summary.left_alone) == 2 * TINY.layers + 1, "the norms of both stages"
    reason = f"{TINY.hidden} values are fewer than the 1,024 that share a scale"
    assert set(summary.left_alone.values()) == {reason}
    assert summary.as_dict()["left_alone"] == summary.left_alone
    assert run(session).left_alone == {}


LEARNING = {"train__steps": 40, "train__learning_rate": 1e-3, "overlap__bucket_mb": 1}


def ends(session: Session, **values: Any) -> tuple[float, float]:
    """Training loss of the first step, and of the last five."""
    losses = [loss for loss in run(session, **LEARNING | values).losses if loss is not None]
    return losses[0], sum(losses[-5:]) / 5


@pytest.fixture(scope="module")
def exact(session: Session) -> float:
    """The loss without compression."""
    return ends(session)[1]


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("method", "worse"), [("fp16", 1.005), ("bf16", 1.01), ("int8", 1.01), ("int4", 1.03), ("powersgd", 1.05)]
)
def test_mild_methods_learn_as_the_exact_one(
    session: Session, exact: float, method: str, worse: float
) -> None:
    first, last = ends(session, compression__method=method)
    assert last < worse * exact
    assert last < 0.8 * first


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        (
            {"compression__method": "powersgd", "compression__rank": 200},
            "compression.rank",
            "nearest legal: 5",
        ),
        (
            {"compression__method": "powersgd", "compression__rank": 70},
            "compression.rank",
            "saves less than half",
        ),
        (
            {"compression__method": "topk", "compression__layers": {"*": 2.0}},
            "compression.layers.*",
            "at most 1",
        ),
        ({"compression__method": "int8", "compression__layers": {"*": 16.0}}, "compression.layers.*", "bits"),
        (
            {"compression__method": "sign", "compression__layers": {"a": 1.0}},
            "compression.layers.a",
            "no value",
        ),
        (
            {"compression__method": "powersgd", "compression__layers": {"a": 1.5}},
            "compression.layers.a",
            "nearest",
        ),
        ({"compression__method": "topk", "parallel__zero_stage": 1}, "compression.method", "zero_stage 0"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(values: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(LayoutError) as caught:
        check(small(parallel__dp=2, **values))
    assert caught.value.field == field
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
