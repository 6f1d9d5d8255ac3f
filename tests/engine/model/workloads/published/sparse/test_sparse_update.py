"""Parts of an int8 network are trained within a budget: chosen exactly, right gradients, the bytes of the formula."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.model.stage import Stage
from engine.model.workload import OwnStep, StepInput, StepSetting
from engine.model.workloads.blueprint import open_blueprint
from engine.model.workloads.published.sparse.contribution import whole_update
from engine.model.workloads.published.sparse.int8_layers import Layer, pack, quantize_layers, unpack
from engine.model.workloads.published.sparse.sparse_update import workload
from engine.model.workloads.published.sparse.update_choice import (
    SHARES,
    Costs,
    Gains,
    LayerShape,
    Update,
    choose_best,
    choose_last_layers,
)
from engine.model.workloads.sequential import ListedBlueprint
from engine.parallel.build import single_rank_axes
from engine.rank.workload_report import workload_facts
from tests.support.runs import small

SHAPES = [
    LayerShape("blocks.0", 3, 6, 3, 64, 64),
    LayerShape("blocks.1", 6, 8, 3, 64, 16),
    LayerShape("blocks.2", 8, 9, 3, 16, 16),
    LayerShape("last", 9, 5, 1, 1, 1, head=True),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products gain nothing from more, which wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def config_of(options: dict[str, Any], **more: Any) -> RunConfig:
    usual = {"train__optimizer": "sgd", "train__momentum": 0.0, "train__weight_decay": 0.0}
    usual |= {"train__learning_rate": 0.02, "batch__global_batch": 16, "batch__micro_batch": 4}
    sizes = {"width": 8, "layers": 3, "classes": 6, "start": 0, "probe": 2}
    return small(model__workload="sparse_update", model__options=sizes | options, **usual | more)


def opened(options: dict[str, Any], **more: Any) -> tuple[Stage, OwnStep, dict[str, Any], RunConfig]:
    """A rank that is alone: its model and step, and what it tells."""
    config, told = config_of(options, **more), dict[str, Any]()
    blueprint = open_blueprint(config, single_rank_axes())
    assert isinstance(blueprint, ListedBlueprint) and blueprint.workload.step is not None
    stage = blueprint.stage(range(blueprint.blocks), blueprint.alone)
    setting = StepSetting(
        stage, None, config, lambda _: nullcontext(), lambda kind, **of: told.update(of, kind=kind)
    )
    return stage, blueprint.workload.step(setting), told, config


def trained(options: dict[str, Any], steps: int) -> list[float]:
    """Losses."""
    stage, step, _, config = opened(options)
    samples = open_blueprint(config, single_rank_axes()).samples(stage)
    losses = list[float]()
    for number in range(steps):
        batches = [samples.training(number * 16, 16)]
        found = step(StepInput(number, batches, 0.05, lambda: pytest.fail("the engine's step")))
        assert found.loss is not None and np.isfinite(found.norm)
        losses.append(found.loss)
    return losses


def layers_of(stage: Stage) -> list[Layer]:
    return [one for one in (*stage.blocks.values(), stage.last) if isinstance(one, Layer)]


def test_the_choice_is_the_best_of_all() -> None:
    costs, drawn = Costs(SHAPES, 2, 1), np.random.default_rng(3)
    head = len(SHAPES) - 1
    for budget in (1500, 4000, 6000, 9000, 20000):
        keys = product(range(head), SHARES)
        gains = Gains(list(drawn.random(head + 1)), {key: float(drawn.normal()) for key in keys})
        best = -np.inf
        for since in range(head + 1):
            for shares in product((0.0, *SHARES), repeat=head - since):
                chosen = {since + at: share for at, share in enumerate(shares) if share}
                if costs.total(Update(since, chosen | {head: 1.0})) <= budget:
                    gained = sum(gains.weights[key] for key in chosen.items())
                    best = max(best, gains.biases[since] + gained)
        found = choose_best(costs, gains, budget)
        if not np.isfinite(best):
            assert found is None and choose_last_layers(costs, budget) is None
            continue
        assert found is not None and costs.total(found) <= budget
        gained = sum(gains.weights[key] for key in found.shares.items() if key[0] != head)
        assert gains.biases[found.since] + gained == pytest.approx(best)
    assert costs.total(whole_update(SHAPES)) < 20000


def test_as_many_last_layers_as_fit() -> None:
    costs = Costs(SHAPES, 2, 0)
    whole = Update(2, {2: 1.0, 3: 1.0})
    room = costs.total(whole)
    assert choose_last_layers(costs, room) == whole
    assert choose_last_layers(costs, room - 1) == Update(2, {2: 0.5, 3: 1.0})
    assert choose_last_layers(costs, 10**6) == whole_update(SHAPES)


def test_flags_take_an_eighth_and_come_back() -> None:
    flags = torch.rand(3, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.5
    assert pack(flags).numel() == 14
    assert torch.equal(unpack(pack(flags), flags.shape), flags.to(torch.uint8))


def in_int8() -> tuple[list[Layer], Tensor]:
    torch.manual_seed(5)
    layers = [Layer(3, 6), Layer(6, 8, stride=2), Layer(8, 5, head=True)]
    images = torch.randn(10, 3, 8, 8)
    quantize_layers(layers, images[:8])
    return layers, images


def run(layers: list[Layer], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def through(x: Tensor, rounded: Tensor) -> Tensor:
    """Rounded, with the gradient of what was not."""
    return x + (rounded - x).detach()


def test_gradients_are_those_of_weights_that_are_rounded_on_the_way() -> None:
    layers, images = in_int8()
    classes = torch.arange(10) % 5
    weights, x = list[Tensor](), images
    for layer in layers:
        grid = layer.grid
        assert grid is not None
        weights.append((grid.codes * grid.worth[:, None, None, None]).requires_grad_())
        x = x.mean(dim=(2, 3), keepdim=True) if layer.head else x
        x = through(x, (x / grid.read).round().clamp(-127, 127) * grid.read)
        x = F.conv2d(x, weights[-1], layer.bias, layer.stride, layer.size // 2)
        if not layer.head:
            cut = F.hardtanh(x, 0.0, 127 * grid.give)
            x = through(cut, (cut / grid.give).round() * grid.give)
    biases = [layer.bias for layer in layers]
    wanted = torch.autograd.grad(F.cross_entropy(x.flatten(1), classes), weights + biases)
    out = run(layers, images)
    assert torch.allclose(out, x.flatten(1), atol=1e-5)
    leaves = [layer.leaf for layer in layers]
    found = torch.autograd.grad(F.cross_entropy(out, classes), leaves + biases)
    for layer, mine, other in zip(layers, found, wanted, strict=False):
        assert layer.grid is not None
        assert float(other.norm()) > 1e-4
        assert torch.allclose(mine, other * layer.grid.worth[:, None, None, None], atol=1e-7, rtol=1e-4)
    for mine, other in zip(found[3:], wanted[3:], strict=True):
        assert torch.allclose(mine, other, atol=1e-6, rtol=1e-4)


def test_a_sample_gives_the_same_to_the_bit_in_any_batch() -> None:
    layers, images = in_int8()
    with torch.no_grad():
        assert torch.equal(run(layers, images)[4:7], run(layers, images[4:7]))


@pytest.mark.parametrize(
    ("options", "momentum"),
    [({"update": "auto", "budget_kib": 20.0}, 0.9), ({"update": "last", "budget_kib": 16.0}, 0.0),
     ({"update": "blocks.1=0.25, blocks.2=0.5, last", "budget_kib": 64.0}, 0.5)],
)  # fmt: skip
def test_bytes_are_those_of_the_formula_and_what_is_left_out_stays(
    options: dict[str, Any], momentum: float
) -> None:
    stage, step, told, config = opened(options, train__momentum=momentum)
    layers = layers_of(stage)
    before = [[one.clone() for one in layer.stored_values()] for layer in layers]
    inputs, classes = open_blueprint(config, single_rank_axes()).samples(stage).training(0, 16)
    batches = list(zip(inputs.split(4), classes.split(4), strict=True))
    for number in range(3):
        step(StepInput(number, batches, 0.05, lambda: pytest.fail("the engine's step")))
    assert told["formula_bytes"] == told["counted_bytes"]
    assert sum(told["counted_bytes"].values()) <= told["budget_bytes"] == options["budget_kib"] * 1024
    assert told["sent_bytes"] == told["counted_bytes"]["gradients"]
    assert any(0 < one["trained_channels"] < one["channels"] for one in told["layers"]), "a part of a layer"
    for layer, (codes, bias), row in zip(layers, before, told["layers"], strict=True):
        now, moved = layer.stored_values()
        rest = torch.ones(len(bias), dtype=torch.bool)
        rest[layer.chosen] = False
        assert rest.sum() == row["channels"] - row["trained_channels"]
        assert torch.equal(now[rest], codes[rest])
        assert row["biases"] != torch.equal(moved, bias)
        assert not row["trained_channels"] or not torch.equal(now, codes)


def test_scaled_int8_learns_like_float32_and_without_scaling_it_does_not() -> None:
    options = {"update": "all", "start": 20}
    exact, scaled, plain = (
        trained(options | more, 40) for more in ({"weights": "float32"}, {}, {"scaled": False})
    )
    ends = [float(np.mean(losses[-8:])) for losses in (exact, scaled, plain)]
    learned = exact[0] - ends[0]
    print(exact[0], ends)
    assert learned > 0.2
    assert ends[1] == pytest.approx(ends[0], abs=0.15 * learned)
    assert plain[0] - ends[2] < 0.6 * learned


def test_bad_input_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"'blocks\.9' is none of auto, last, all, or layers of blocks\.0, "):
        workload(update="last, blocks.9")
    with pytest.raises(ValueError, match="'last=2' is none of"):
        workload(update="last=2")
    with pytest.raises(ValueError, match="weights='int4'"):
        workload(weights="int4")
    with pytest.raises(ValueError, match="doubles the width"):
        workload(width=64)
    refused = {
        "model.options.budget_kib": ({"budget_kib": 2.0}, {}, "the head alone takes"),
        "train.optimizer": ({}, {"train__optimizer": "adamw"}, "set it to sgd"),
        "train.clip_value": ({}, {"train__clip_value": 1.0}, "leave it out"),
    }
    for field, (options, more, words) in refused.items():
        with pytest.raises(InputError, match=words) as told:
            workload_facts(config_of(options, **more))
        assert told.value.field == field
    with pytest.raises(InputError, match="this update takes"):
        workload_facts(config_of({"update": "blocks.0, blocks.2, last", "budget_kib": 9.0}))
