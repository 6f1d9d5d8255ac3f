"""Micro-batches that leave out stages: gradients are those of a plain model that leaves out the same blocks."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import _plain as plain
from benchmarks._ranks import whole_weights
from engine.checkpoint import checkpoint_folder
from engine.config.layout import layers_of_stages
from engine.config.presets import resolve
from engine.config.run_config import RunConfig
from engine.footprint.footprint import plan_of
from engine.model.data import open_corpus
from engine.run import run_folder
from engine.session import Session
from profilers.records.reader import RunRecords
from tests.engine.rank.test_reconfigure import run
from tests.support.engine.checkpoints import whole
from tests.support.runs import execute, small

#: One step that moves each weight by its gradient, and saves it.
BARE = {"train__steps": 1, "train__warmup": 0, "train__optimizer": "sgd", "train__momentum": 0.0,
        "train__learning_rate": 1.0, "train__weight_decay": 0.0, "train__clip_norm": None,
        "checkpoint__every_steps": 1, "model__layers": 6}  # fmt: skip
THREE = {"parallel__pp": 3, "schedule__skip_share": 1 / 6}
FOUR_ON_TWO = {
    "parallel__pp": 2,
    "schedule__kind": "interleaved",
    "schedule__chunks": 2,
    "schedule__skip_share": 0.25,
}
UNPLANNED = {"schedule__skip_order": "unplanned"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "2 ranks": FOUR_ON_TWO,
    "3 ranks": THREE,
    "3 ranks, uneven": {**THREE, "schedule__stage_layers": [1, 4, 1]},
    "2 ranks, unplanned": FOUR_ON_TWO | UNPLANNED,
    "3 ranks, unplanned": THREE | UNPLANNED,
    "2 replicas": THREE | {"parallel__dp": 2},
    "zero 3": FOUR_ON_TWO | {"parallel__dp": 2, "parallel__zero_stage": 3},
    "recomputed": THREE | {"memory__recompute": "full"},
    "tp": FOUR_ON_TWO | {"parallel__tp": 2},
}


def plain_gradients(config: RunConfig) -> tuple[float, dict[str, Tensor], tuple[float, float]]:
    """Loss and gradients of the first step, one micro-batch after the other through its own blocks; and the loss on
    held-out text after it, through all blocks and with as many left out.
    """
    model = plain.PlainDecoder(plain.Sizes(**asdict(resolve(config.model))), config.data.sequence_length)
    model.load_state_dict(whole_weights(config))
    corpus, batch = open_corpus(config.data, config.train.seed), config.batch.global_batch
    loss = partial_loss(config, model, torch.from_numpy(corpus.training(0, batch)), plan_of(config).paths)
    loss.backward()
    found = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(one - one.grad)
        windows, chosen = torch.from_numpy(corpus.validation(0, batch)), plan_of(config)
        after = [float(partial_loss(config, model, windows, paths))
                 for paths in ((tuple(range(chosen.stages)),) * chosen.micro_batches, chosen.paths)]  # fmt: skip
    return loss.item(), found, (after[0], after[1])


def partial_loss(
    config: RunConfig, model: plain.PlainDecoder, windows: Tensor, paths: tuple[tuple[int, ...], ...]
) -> Tensor:
    """The mean over micro-batches; every replica has as many, with the same paths."""
    layers = layers_of_stages(len(model.blocks), plan_of(config).stages, config.schedule.stage_layers)
    parts = windows.split(config.batch.micro_batch)
    losses = []
    for number, window in enumerate(parts):
        x = model.embedding(window[:, :-1])
        for layer in (layer for stage in paths[number % len(paths)] for layer in layers[stage]):
            x = model.blocks[layer](x, model.cosine, model.sine)
        logits = model.head(model.norm(x))
        losses.append(F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten()))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_those_of_a_plain_model(session: Session, tmp_path: Path, layout: str) -> None:
    config = small(**BARE | LAYOUTS[layout])
    assert sum(map(len, plan_of(config).paths)) < plan_of(config).stages * plan_of(config).micro_batches
    loss, wanted, held_out = plain_gradients(config)
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    assert summary.losses == pytest.approx([loss], abs=1e-5)
    saved = whole(
        session.home / summary.id / checkpoint_folder.CHECKPOINTS / checkpoint_folder.name_of(1),
        tmp_path / "whole",
    )
    before = whole_weights(config)
    for name, gradient in wanted.items():
        assert torch.allclose(before[name] - saved[f"model.{name}"], gradient, atol=1e-6, rtol=1e-4), name
    assert summary.validation_loss == pytest.approx(held_out[0], abs=1e-4)
    assert summary.partial_loss == pytest.approx(held_out[1], abs=1e-4)
    assert held_out[0] != pytest.approx(held_out[1], abs=1e-3)


def test_a_stage_has_one_micro_batch_at_a_time_and_each_runs_what_is_planned(session: Session) -> None:
    config = small(**THREE, model__layers=6, profile__budget=None)
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    records, chosen = RunRecords(session.home / summary.id / run_folder.RECORDS), plan_of(config)
    for rank in range(3):
        rows: Any = records.table(rank, "action").rows()
        assert all(after.start_unix >= one.start_unix + one.seconds - 1e-5 for one, after in pairwise(rows))
        of_step = [(row.work, row.micro_batch, row.stage) for row in rows if row.step == 1]
        assert of_step == [tuple(action) for action in chosen.actions[rank]]
    assert summary.pipeline is not None
    assert summary.pipeline.trained_shares == [1.0, 0.5, 1.0]
    assert summary.pipeline.formula_source == "simulation of its lists"


def test_it_is_turned_on_and_off_while_a_run_goes(session: Session) -> None:
    config = small(**FOUR_ON_TWO, model__layers=6, train__steps=12).with_values({"schedule.skip_share": 0.0})
    plain = run(session, config)
    turned = run(session, config, {"schedule.skip_share": 0.25}, {"schedule.skip_share": 0.0})
    assert [(row.key, row.new) for row in turned.changes] == [
        ("schedule.skip_share", 0.25),
        ("schedule.skip_share", 0.0),
    ]
    first = turned.changes[0].step
    assert turned.losses[:first] == pytest.approx(plain.losses[:first], abs=1e-5)
    assert turned.losses[first] != pytest.approx(plain.losses[first], abs=1e-4)
    assert turned.partial_loss is None


BESIDE: dict[str, dict[str, Any]] = {
    "experts": {"model__experts": 4, "parallel__dp": 2, "parallel__ep": 2},
    "compression": {"parallel__dp": 2, "compression__method": "int8", "compression__start_step": 0},
    "late gradients": {"parallel__dp": 2, "overlap__delay": 1},
    "budget": {"memory__budget_gib": 0.05},
    "offload": {"memory__offload": "activations"},
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("beside", BESIDE)
def test_it_goes_along_with_other_knobs(session: Session, beside: str) -> None:
    outcome, summary = execute(session, small(**THREE, **BESIDE[beside], model__layers=6))
    assert outcome.good, outcome
    assert all(loss is not None and 0 < loss < 10 for loss in summary.losses)
    assert summary.partial_loss is not None
