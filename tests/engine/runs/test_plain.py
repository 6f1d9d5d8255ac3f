"""The engine in one process against a decoder and a loop that share no code with it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch

from benchmarks import _plain as plain
from benchmarks._ranks import whole_weights
from engine.config.presets import resolve
from engine.config.run_config import RunConfig
from engine.model.data import open_corpus
from engine.run import run_folder
from engine.session import Session
from profilers.records.reader import RunRecords
from profilers.records.schema import StepSample
from tests.support.runs import execute, small

LOSS_TOLERANCE = 1e-5
NORM_TOLERANCE = 1e-4
#: Two query heads share a key head; wider than high, so that no two sizes can be mixed up.
GROUPED = {"model__heads": 8, "model__kv_heads": 4, "model__layers": 2, "model__ffn_hidden": 224}


def plain_steps(config: RunConfig, **recipe: Any) -> list[tuple[float, float]]:
    """Loss and gradient norm of every step by the plain loop."""
    train, batch = config.train, config.batch
    sizes = plain.Sizes(**asdict(resolve(config.model)))
    model = plain.PlainDecoder(sizes, config.data.sequence_length)
    model.load_state_dict(whole_weights(config))
    values: dict[str, Any] = {"clip_norm": train.clip_norm, "weight_decay": train.weight_decay}
    values |= {"learning_rate_warmup": train.learning_rate_warmup} | recipe
    loop = plain.Loop(model, plain.Recipe(batch.micro_batch, train.learning_rate, **values))
    corpus = open_corpus(config.data, train.seed)
    windows = [corpus.training(step * batch.global_batch, batch.global_batch) for step in range(train.steps)]
    return [loop.step(torch.from_numpy(window)) for window in windows]


def engine_steps(session: Session, config: RunConfig) -> list[tuple[float, float]]:
    """The same by a run of the engine, from its records."""
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    records = RunRecords(session.home / summary.id / run_folder.RECORDS)
    steps: list[StepSample] = records.table(0, "step").rows()  # type: ignore[assignment]
    return [(step.loss or 0.0, step.gradient_norm or 0.0) for step in steps]


@pytest.mark.parametrize(
    "values",
    [
        {},
        GROUPED,
        {"batch__micro_batch": 4, "train__clip_norm": None},
        {"train__learning_rate_warmup": 2, "train__learning_rate": 1e-2},
    ],
    ids=str,
)
def test_the_engine_equals_a_plain_loop(session: Session, values: dict[str, Any]) -> None:
    config = small(**values)
    ours, theirs = engine_steps(session, config), plain_steps(config)
    assert len(ours) == len(theirs) == 3
    for (loss, norm), (plain_loss, plain_norm) in zip(ours, theirs, strict=True):
        assert loss == pytest.approx(plain_loss, abs=LOSS_TOLERANCE, rel=0)
        assert norm == pytest.approx(plain_norm, rel=NORM_TOLERANCE)


@pytest.mark.parametrize(
    "recipe", [{"clip_norm": None}, {"weight_decay": 0.0}, {"learning_rate_warmup": 2}], ids=str
)
def test_three_steps_are_enough_to_see_clipping_decay_and_warm_up(recipe: dict[str, Any]) -> None:
    right, wrong = plain_steps(small()), plain_steps(small(), **recipe)
    assert abs(right[2][0] - wrong[2][0]) > 5 * LOSS_TOLERANCE
