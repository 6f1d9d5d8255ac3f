"""A person's own model gives the losses of a plain loop in one process, whatever the engine does with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.session import Session
from tests.support.engine.own_models import HERE
from tests.support.engine.plain_loop import plain_losses
from tests.support.runs import execute, small

LOSS_TOLERANCE = 1e-5
MODELS = ("vision", "masked_text", f"{HERE}:shrinking")
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"parallel__dp": 2},
    *({"parallel__dp": 2, "parallel__zero_stage": stage} for stage in (1, 2, 3)),
    {"parallel__dp": 2, "parallel__zero_stage": 3, "overlap__prefetch": 1},
    {"parallel__dp": 2, "parallel__zero_stage": 2, "parallel__reduce_every_micro_batch": True},
    {"parallel__dp": 4, "parallel__zero_stage": 3, "parallel__shard_ranks": 2},
    {"parallel__pp": 2},
    {"parallel__pp": 4},
    {"parallel__pp": 2, "schedule__stage_layers": [1, 3]},
    {"parallel__pp": 2, "schedule__kind": "interleaved", "schedule__chunks": 2},
    {"parallel__pp": 2, "schedule__kind": "gpipe", "parallel__dp": 2, "parallel__zero_stage": 3},
    {"parallel__pp": 2, "parallel__dp": 2, "parallel__zero_stage": 1, "memory__recompute": "full"},
    {"memory__recompute": "full"},
    {"memory__recompute": "full", "memory__recompute_layers": 2, "parallel__dp": 2},
    {"memory__recompute": "full", "parallel__dp": 2, "parallel__zero_stage": 3},
    {"memory__offload": "both"},
    {"overlap__gather_with_optimizer": True, "parallel__dp": 2, "parallel__zero_stage": 1},
    {"parallel__dp": 2, "overlap__bucket_mb": 0.01, "batch__micro_batch": 2},
    {"parallel__dp": 2, "compression__method": "topk", "compression__ratio": 1.0},
]


def name(values: dict[str, Any]) -> str:
    """A short test id."""
    return "-".join(f"{key.split('__')[1]}{value}" for key, value in values.items()) or "one"


@pytest.mark.drawn(3)
@pytest.mark.parametrize("values", LAYOUTS, ids=name)
@pytest.mark.parametrize("model", MODELS, ids=("vision", "masked", "shrinking"))
def test_losses_are_those_of_a_plain_loop(session: Session, model: str, values: dict[str, Any]) -> None:
    config = small(model__workload=model, **values)
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(plain_losses(config), abs=LOSS_TOLERANCE, rel=0)
    assert len(set(summary.losses)) == len(summary.losses) == 3


@pytest.mark.drawn(1)
@pytest.mark.parametrize("method", ["diloco", "local", "co2", "streaming"])
def test_an_outer_loop_does_not_see_the_pipeline(session: Session, method: str) -> None:
    wanted = {"model__workload": "vision", "parallel__dp": 2, "outer__method": method, "outer__period": 2}
    wanted |= {"train__steps": 6, "outer__overlap": 0}
    plain, piped = (execute(session, small(**wanted, parallel__pp=pp)) for pp in (1, 2))
    assert plain[0].good and piped[0].good, (plain, piped)
    assert piped[1].losses == pytest.approx(plain[1].losses, abs=LOSS_TOLERANCE, rel=0)


def test_averaging_weights_after_each_plain_step_is_averaging_gradients(session: Session) -> None:
    """Of SGD without momentum and clipping: mean(w - r g) = w - r mean(g)."""
    wanted = {"model__workload": "vision", "train__optimizer": "sgd", "train__momentum": 0.0}
    wanted |= {"train__clip_norm": None, "train__learning_rate": 0.3, "train__steps": 4}
    outcome, summary = execute(
        session, small(**wanted, parallel__dp=2, outer__method="local", outer__period=1)
    )
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(plain_losses(small(**wanted)), abs=LOSS_TOLERANCE, rel=0)


@pytest.mark.parametrize("method", ["int8"])
def test_compressed_gradients_come_close(session: Session, method: str) -> None:
    wanted = {"model__workload": "vision", "parallel__dp": 2, "train__steps": 5, "compression__start_step": 0}
    outcome, summary = execute(session, small(**wanted, compression__method=method))
    assert outcome.good, outcome
    plain = plain_losses(small(**wanted))
    assert summary.losses[0] == pytest.approx(plain[0], abs=LOSS_TOLERANCE)
    assert summary.losses != pytest.approx(plain, abs=1e-7), "nothing was compressed"
    assert summary.losses == pytest.approx(plain, abs=0.02)


def test_a_run_goes_on_in_another_layout(session: Session, tmp_path: Path) -> None:
    folders: list[Path] = []
    first = small(model__workload="vision", train__steps=2, checkpoint__every_steps=2, parallel__dp=2)
    outcome, _ = execute(session, first, on_start=folders.append)
    assert outcome.good, outcome
    rest = {"model__workload": "vision", "train__steps": 4, "train__resume": str(folders[0])}
    outcome, summary = execute(session, small(**rest, parallel__pp=2, parallel__zero_stage=3))
    assert outcome.good, outcome
    whole = plain_losses(small(model__workload="vision", train__steps=4))
    assert summary.losses == pytest.approx(whole[2:], abs=LOSS_TOLERANCE, rel=0)


def test_bf16_is_autocast_and_comes_close(session: Session) -> None:
    wanted = {"model__workload": "vision", "precision": "bf16"}
    found = [
        execute(session, small(**wanted, **more))
        for more in ({}, {"parallel__dp": 2, "parallel__zero_stage": 3})
    ]
    assert all(outcome.good for outcome, _ in found), found
    plain = plain_losses(small(model__workload="vision"))
    for _, summary in found:
        assert summary.losses == pytest.approx(plain, abs=0.05)
        assert summary.losses != pytest.approx(plain, abs=1e-6), "it computed in fp32"


def test_a_summary_says_what_was_trained(session: Session) -> None:
    outcome, summary = execute(session, small(model__workload="vision", parallel__dp=2))
    assert outcome.good, outcome
    assert (summary.workload, summary.metric_name) == ("vision", "accuracy")
    # 8 held-out images: the share that is right is a multiple of an eighth.
    assert summary.validation_metric is not None and (8 * summary.validation_metric) % 1 == 0
    assert summary.tokens_per_step == 8  # one a sample
    # By hand: 16 patches of 48 numbers, 4 blocks of width 64 (12 width² of matrices), 10 classes.
    block, head = 16 * 12 * 64 * 64 * 2 + 4 * 16 * 16 * 64, 64 * 10 * 2
    patches = 16 * 48 * 64 * 2  # whose inputs get no gradient
    assert summary.model_flops_per_step == 8 * (3 * (4 * block + head) + 2 * patches)
    matrices = 4 * 12 * 64 * 64 + 48 * 64 + 64 * 10 + 16 * 64
    vectors = 64 + 4 * (64 * 9 + 4 * 64) + 10 + 2 * 64
    assert summary.parameters == matrices + vectors


def test_of_a_model_without_meta_tensors_flops_are_not_made_up(session: Session) -> None:
    outcome, summary = execute(session, small(model__workload=f"{HERE}:no_meta"))
    assert outcome.good, outcome
    assert summary.model_flops_per_step is None
    assert "on meta tensors the model raises" in str(summary.mfu_reason)
