"""Gradients that come a step late, and coarse messages between owners of slices and of experts: what runs lose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from engine.comm.channel import Channel
from engine.comm.context import Groups
from engine.config.layout import Coordinates
from engine.config.run_config import parse
from engine.model.activation_memory import Activations
from engine.parallel.data.averaging import AveragedParameters, SharedParameters
from engine.parallel.data.ddp import DataParallel
from engine.parallel.data.optimizer import LocalOptimizer
from engine.parallel.data.replica import mark_parameters
from engine.parallel.data.zero1 import SlicedParameters
from engine.session import Session
from profilers.steps.clock import clock_for
from profilers.steps.timer import StepTimer
from tests.engine.checkpoint.test_checkpointer import folder_of, losses_of
from tests.engine.model.test_activation_memory import build
from tests.support.ranks import on_ranks

DELAY = {"overlap": {"delay": 1, "bucket_mb": 0.01}, "train": {"learning_rate": 0.01}}
STEPS = 4


def delayed(rank: int, zero_stage: int) -> list[float]:
    """How far the weights are from AdamW on averages that are one step old, after each step."""
    decoder, twin = build(Activations()), build(Activations())
    twin.load_state_dict(decoder.state_dict())
    mark_parameters(decoder)
    shared = SharedParameters(dict(decoder.named_parameters()), dist.group.WORLD)
    config = parse(DELAY | {"parallel": {"zero_stage": zero_stage, "dp": 2}})
    part = (SlicedParameters if zero_stage else AveragedParameters)(
        shared, config, StepTimer(clock_for("cpu")), 1
    )
    world: Any = dist.group.WORLD
    groups = Groups(Coordinates(dp=rank), 2, data=world, norm=Channel(world, torch.device("cpu")))
    optimizer = LocalOptimizer([DataParallel(decoder, [part])], groups, config.train)
    plain = torch.optim.AdamW(_groups(twin), lr=0.01, weight_decay=config.train.weight_decay)
    errors, before = [], None
    for step in range(STEPS):
        now = [_gradients(twin, step, one) for one in range(2)]
        for parameter, gradient in zip(part.shared.parameters.values(), now[rank], strict=True):
            part.buckets.gradients[parameter].copy_(gradient)
        part.buckets.arm()
        part.buckets.finish()
        norm = optimizer.step()
        if before is not None:
            for parameter, gradients in zip(twin.parameters(), zip(*before, strict=True), strict=True):
                parameter.grad = torch.stack(gradients).mean(0)
            assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)))
            plain.step()
        else:
            assert norm == 0
        before = now
        pairs = zip(decoder.parameters(), twin.parameters(), strict=True)
        errors.append(max(float((a - b).detach().abs().max()) for a, b in pairs))
    optimizer.finish()
    return errors


def _groups(module: torch.nn.Module) -> list[dict[str, Any]]:
    parameters = list(module.parameters())
    return [
        {"params": [one for one in parameters if one.ndim > 1]},
        {"params": [one for one in parameters if one.ndim == 1], "weight_decay": 0.0},
    ]


def _gradients(module: torch.nn.Module, step: int, rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return [torch.randn(one.shape, generator=generator) for one in module.parameters()]


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_delayed_gradients_are_those_of_the_step_before(zero_stage: int) -> None:
    for errors in on_ranks(2, delayed, zero_stage):
        assert errors[0] == 0, "the first step has nothing to apply"
        assert max(errors) < 1e-5


RESUMED = {
    "dp2": {"parallel__dp": 2},
    "zero1 tp2 int8": {
        "parallel__dp": 2,
        "parallel__tp": 2,
        "parallel__zero_stage": 1,
        "compression__method": "int8",
        "compression__bucket_values": 64,
        "overlap__gather_with_optimizer": True,
    },
}
SLOW = {"zero1 tp2 int8"}


@pytest.mark.parametrize(
    "layout",
    [pytest.param(one, marks=[pytest.mark.slow] * (key in SLOW), id=key) for key, one in RESUMED.items()],
)
def test_a_resumed_run_applies_what_was_under_way(session: Session, layout: dict[str, Any]) -> None:
    settings = {"overlap__delay": 1, **layout}
    straight = losses_of(session, train__steps=5, **settings)
    saving = losses_of(session, train__steps=3, checkpoint__every_steps=3, **settings)
    going_on = {"train__steps": 5, "train__resume": str(folder_of(session, saving))}
    resumed = losses_of(session, **going_on, **settings)
    assert resumed.losses == straight.losses[3:]
    assert resumed.gradient_norms == straight.gradient_norms[3:]
    assert straight.gradient_norms[0] == 0
    assert not resumed.notes


LOSSY: dict[str, dict[str, Any]] = {
    "zero1 int8": {"parallel__zero_stage": 1, "compression__method": "int8"},
    "zero3 int4 weights": {
        "parallel__zero_stage": 3,
        "compression__method": "int4",
        "compression__weights": "int8",
        "overlap__prefetch": 1,
    },
    "experts int8": {"model__experts": 4, "parallel__ep": 2, "compression__experts": "int8"},
    "delay": {"overlap__delay": 1},
}
TRAINED = {
    "parallel__dp": 2,
    "train__steps": 8,
    "compression__start_step": 1,
    "compression__bucket_values": 64,
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("values", LOSSY.values(), ids=LOSSY)
def test_what_loses_something_still_learns(session: Session, values: dict[str, Any]) -> None:
    lossy = losses_of(session, **TRAINED, **values)
    exact = losses_of(session, **TRAINED, model__experts=values.get("model__experts"))
    found, true = np.array(lossy.losses, float), np.array(exact.losses, float)
    assert 0 < float(np.abs(found - true).max()) < 0.25
    assert found[-1] < found[0] - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("values", LOSSY.values(), ids=LOSSY)
def test_the_same_run_loses_the_same(session: Session, values: dict[str, Any]) -> None:
    assert losses_of(session, **TRAINED, **values).losses == losses_of(session, **TRAINED, **values).losses


@pytest.mark.slow
def test_sharded_error_memory_is_in_checkpoints(session: Session) -> None:
    settings = TRAINED | LOSSY["zero3 int4 weights"] | {"parallel__dp": 4, "parallel__shard_ranks": 2}
    straight = losses_of(session, **settings | {"train__steps": 5})
    saving = losses_of(session, **settings | {"train__steps": 3}, checkpoint__every_steps=3)
    going_on = {"train__steps": 5, "train__resume": str(folder_of(session, saving))}
    resumed = losses_of(session, **settings | going_on)
    assert resumed.losses == straight.losses[3:]
    assert not resumed.notes
