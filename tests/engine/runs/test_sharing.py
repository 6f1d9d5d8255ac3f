"""Tied embeddings and shared layers: every layout computes what one process computes with torch's plain tied modules."""

from __future__ import annotations

import json
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
#: Eight thin layers: stages enough to cut groups of two and of four in the middle.
DEEP = {"model__layers": 8, "model__hidden": 32, "model__ffn_hidden": 64}
TIED, ALL, FOUR, BOTH = (
    {"model__tied_embeddings": True},
    {"model__layer_groups": 1},
    {"model__layer_groups": 4},
    {"model__tied_embeddings": True, "model__layer_groups": 2},
)
KINDS = (TIED, ALL, FOUR, BOTH)
_PP3 = {"parallel__pp": 3}
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"parallel__tp": 2},
    {"parallel__pp": 2},
    _PP3,
    {"parallel__dp": 2},
    {"parallel__dp": 2, "parallel__zero_stage": 1},
    {"parallel__dp": 2, "parallel__zero_stage": 2},
    {"parallel__dp": 2, "parallel__zero_stage": 3},
    {"parallel__dp": 2, "parallel__pp": 2},
    {"parallel__dp": 2, "parallel__pp": 2, "parallel__zero_stage": 1, "overlap__bucket_mb": 0.02},
    {"parallel__dp": 2, "parallel__pp": 2, "parallel__zero_stage": 2},
    {"parallel__dp": 2, "parallel__pp": 2, "parallel__zero_stage": 3},
    {"parallel__tp": 2, "parallel__pp": 2, "parallel__tp_regather": True},
    {"parallel__cp": 2, "parallel__pp": 2},
    {"parallel__dp": 4, "parallel__zero_stage": 3, "parallel__shard_ranks": 2},
    {"parallel__dp": 2, "parallel__tp": 2, "parallel__zero_stage": 3, "overlap__prefetch": 2},
    {"parallel__dp": 2, "parallel__zero_stage": 3, "memory__recompute": "full"},
    {"parallel__dp": 2, "parallel__zero_stage": 1, "overlap__gather_with_optimizer": True},
    {"parallel__pp": 2, "schedule__kind": "interleaved", "schedule__chunks": 2, "memory__recompute": "full"},
    {"parallel__pp": 2, "schedule__kind": "zb_v", "schedule__chunks": 2},
    {"parallel__pp": 2, "schedule__kind": "zb_h1", "parallel__dp": 2, "parallel__zero_stage": 1},
    {"schedule__kind": "layered", "schedule__chunks": 4, "parallel__dp": 2},
    {
        "parallel__pp": 2,
        "parallel__dp": 2,
        "schedule__kind": "interleaved",
        "schedule__chunks": 2,
        "parallel__zero_stage": 1,
        "overlap__gather_with_optimizer": True,
    },
    {"memory__recompute": "selective", "memory__recompute_layers": 1},
    {"memory__block_actions": ["keep", "full", "offload", "selective", "keep", "full", "offload", "keep"]},
    {"parallel__dp": 2, "memory__offload": "both"},
]


def name(values: dict[str, Any]) -> str:
    """A short test id."""
    return "-".join(f"{key.split('__')[1]}{value}" for key, value in values.items()) or "alone"


def plain_steps(config: RunConfig) -> list[tuple[float, float]]:
    """Loss and gradient norm of every step by a loop whose modules are tied by hand."""
    train, batch, model = config.train, config.batch, config.model
    made = plain.PlainDecoder(plain.Sizes(**asdict(resolve(model))), config.data.sequence_length)
    made.load_state_dict(whole_weights(config))
    if model.tied_embeddings:
        made.head.weight = made.embedding.weight
    each = len(made.blocks) // (model.layer_groups or len(made.blocks))
    for place in range(len(made.blocks)):
        made.blocks[place] = made.blocks[place // each * each]
    recipe = plain.Recipe(batch.micro_batch, train.learning_rate, train.weight_decay, train.clip_norm)
    loop = plain.Loop(made, recipe)
    corpus = open_corpus(config.data, train.seed)
    windows = [corpus.training(step * batch.global_batch, batch.global_batch) for step in range(train.steps)]
    return [loop.step(torch.from_numpy(window)) for window in windows]


@pytest.fixture(scope="module")
def references() -> dict[str, list[tuple[float, float]]]:
    """By kind of sharing."""
    return {name(kind): plain_steps(small(**DEEP, **kind)) for kind in KINDS}


def engine_steps(session: Session, config: RunConfig) -> list[tuple[float, float]]:
    """The same by a run of the engine: losses of the summary, norms from the records of rank 0."""
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    records = RunRecords(session.home / summary.id / run_folder.RECORDS)
    steps: list[StepSample] = records.table(0, "step").rows()  # type: ignore[assignment]
    return [(loss, step.gradient_norm or 0.0) for loss, step in zip(summary.losses, steps, strict=True)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=name)
@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_every_layout_equals_plain_tied_modules(
    session: Session,
    references: dict[str, list[tuple[float, float]]],
    kind: dict[str, Any],
    layout: dict[str, Any],
) -> None:
    ours = engine_steps(session, small(**DEEP, **kind, **layout))
    for (loss, norm), (plain_loss, plain_norm) in zip(ours, references[name(kind)], strict=True):
        assert loss == pytest.approx(plain_loss, abs=LOSS_TOLERANCE, rel=0)
        assert norm == pytest.approx(plain_norm, rel=NORM_TOLERANCE)


def test_sharing_changes_what_is_learned(references: dict[str, list[tuple[float, float]]]) -> None:
    plain_ones = plain_steps(small(**DEEP))
    for losses in references.values():
        assert abs(losses[-1][0] - plain_ones[-1][0]) > 10 * LOSS_TOLERANCE
