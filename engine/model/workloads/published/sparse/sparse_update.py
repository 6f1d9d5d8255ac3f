"""Training within 256 KB (arXiv 2206.15472): int8 weights of which a part is trained that fits a budget of bytes.

A network that was trained on other classes (``start`` steps, in float32) is put into int8 and learns new ones. What
each layer's update brings is measured first, the best set within the budget is chosen exactly, and only that is
trained, kept for and sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config.errors import InputError
from engine.model.workload import Build, StepInput, StepResult, StepSetting, Workload
from engine.model.workloads.published.options import require_minimum
from engine.model.workloads.published.sparse import contribution
from engine.model.workloads.published.sparse.int8_layers import Layer, SavedBytes, quantize_layers
from engine.model.workloads.published.sparse.update_choice import (
    Costs,
    Gains,
    LayerShape,
    Update,
    choose_best,
    choose_last_layers,
)
from engine.model.workloads.published.sparse.update_rule import Rule, SparseOptimizer
from engine.model.workloads.vision import DrawnImages, accuracy
from profilers.analysis.events import UPDATE_EVENT

#: Of choosing what is trained.
WAYS = ("auto", "last", "all")
#: Sums of codes are exact up to so many channels, three places square.
_WIDEST = 96
#: Batches by whose largest values activations are put into int8.
_GRIDS = 4


@dataclass(frozen=True)
class Task:
    """What a workload is asked for."""

    #: Shares by place; or a way to choose them.
    update: str | Mapping[int, float]
    budget: int
    int8: bool
    scaled: bool
    start: int
    probe: int
    shapes: Sequence[LayerShape]
    new: DrawnImages
    old: DrawnImages


def workload(
    update: str = "auto",
    budget_kib: float = 256.0,
    *,
    weights: str = "int8",
    scaled: bool = True,
    start: int = 200,
    probe: int = 10,
    image: int = 8,
    width: int = 16,
    layers: int = 6,
    classes: int = 10,
    seed: int = 0,
) -> Workload:
    """Convolutions on drawn images, twice as wide and half as long after every second one.

    ``update`` is ``auto`` (by what a layer's update brings), ``last`` (as many last layers as fit), ``all`` (whatever
    it takes), or layers with the share of their output channels, such as "blocks.3=0.5, last". ``scaled`` divides
    gradients of codes by the square of what a code is worth. ``weights: float32`` trains the same parts in float32.

    Raises:
        ValueError: an option is out of its range, or a layer unknown.
    """
    require_minimum(1, image=image, width=width, classes=classes)
    shapes = _shapes(image, width, layers, classes)
    if weights not in ("int8", "float32") or start < 0 or min(probe, budget_kib) <= 0:
        raise ValueError(
            f"{weights=}, {start=}, {probe=}, {budget_kib=}: int8 or float32; only start may be 0"
        )
    task = Task(
        update if update in WAYS else _parse_shares(update, shapes),
        int(budget_kib * 1024), weights == "int8", scaled, start, probe, shapes,
        DrawnImages(image, classes, seed), DrawnImages(image, classes, seed + 1_000_000),
    )  # fmt: skip
    return Workload(
        name="sparse_update",
        blocks=[_builder(shape) for shape in shapes[:-1]],
        last=lambda: Layer(shapes[-1].inputs, classes, head=True),
        batches=task.new,
        loss=F.cross_entropy,
        metric=accuracy,
        metric_name="accuracy",
        step=lambda setting: SparseTraining(setting, task).take,
    )


def _shapes(image: int, width: int, layers: int, classes: int) -> list[LayerShape]:
    """Of the convolutions, and of the head.

    Raises:
        ValueError: sizes do not fit.
    """
    halvings = (layers - 1) // 2
    if layers < 1 or image % 2**halvings or width * 2**halvings > _WIDEST:
        raise ValueError(
            f"{image=}, {width=}, {layers=}: every second layer halves the image and doubles the width, to at "
            f"most {_WIDEST} channels, whose sums of codes float32 holds exactly"
        )
    shapes, inputs = list[LayerShape](), 3
    for place in range(layers):
        before, after = (image // 2 ** (max(layer, 0) // 2) for layer in (place - 1, place))
        outputs = width * 2 ** (place // 2)
        shapes.append(LayerShape(f"blocks.{place}", inputs, outputs, 3, before**2, after**2))
        inputs = outputs
    return [*shapes, LayerShape("last", inputs, classes, 1, 1, 1, head=True)]


def _parse_shares(update: str, shapes: Sequence[LayerShape]) -> dict[int, float]:
    """Shares by place.

    Raises:
        ValueError: a layer is unknown, or its share no share.
    """
    places, parsed = {shape.name: place for place, shape in enumerate(shapes)}, dict[int, float]()
    for part in update.split(","):
        name, _, share = (text.strip() for text in part.partition("="))
        with suppress(ValueError):
            parsed[places.get(name, -1)] = float(share or 1)
        if name not in places or not 0 < parsed.get(places[name], 0) <= 1:
            legal = f"{', '.join(WAYS)}, or layers of {', '.join(places)}, each with =SHARE above 0 to 1"
            raise ValueError(f"update: {part.strip()!r} is none of {legal}")
    return parsed


def _builder(shape: LayerShape) -> Build:
    return lambda: Layer(shape.inputs, shape.outputs, 1 if shape.reads == shape.gives else 2)


class SparseTraining:
    """A rank's steps. Every rank makes the start and the analysis by itself, alike: they stand for what is done before
    a device has the network.
    """

    def __init__(self, setting: StepSetting, task: Task) -> None:
        self._setting, self._task = setting, task
        train = setting.config.train
        self._costs = Costs(task.shapes, setting.config.batch.micro_batch, int(train.momentum > 0))
        _check(setting, task, self._costs)
        named = dict(setting.model.named_modules())
        self._layers = [
            layer for layer in (named[shape.name] for shape in task.shapes) if isinstance(layer, Layer)
        ]
        if not self._layers[0].weight.is_meta:
            rule = Rule(train.momentum, train.weight_decay, train.clip_norm, True, train.seed)
            with contribution.one_thread():
                self._update, self._gains = self._prepare(rule, train.learning_rate)
            self._updating = SparseOptimizer(self._layers, replace(rule, scaled=task.scaled))
            self._saved = SavedBytes([layer.stored_values()[0] for layer in self._layers])
            self._first = True

    def take(self, step_input: StepInput) -> StepResult:
        """One step."""
        setting, total = self._setting, 0.0
        for inputs, classes in step_input.batches:
            with setting.phase("forward"), self._saved.counting() if self._first else nullcontext():
                loss = setting.model.loss(setting.model(inputs), classes)
            if self._first:
                self._tell()
                self._first = False
            total += float(loss.detach())
            with setting.phase("backward"):
                self._updating.take(loss)
        count = len(step_input.batches)
        with setting.phase("optimizer"):
            norm = self._updating.update(count, setting.channel, step_input.rate, step_input.step)
        return StepResult(total / count, norm)

    def _prepare(self, rule: Rule, rate: float) -> tuple[Update, Gains | None]:
        """Put the trained network into int8, and choose what is trained of it."""
        task, layers, device = self._task, self._layers, self._setting.model.device
        contribution.train_start(layers, task.old, task.start)
        batches = contribution.held_out_batches(task.new, task.probe, device)
        quantize_layers(layers, torch.cat([images for images, _ in batches[:_GRIDS]]))
        analysis = contribution.Analysis(
            layers, task.shapes, rule, rate, batches, contribution.held_out_batch(task.new, device)
        )
        order = analysis.order()
        gains = analysis.gains(order) if task.update == "auto" else None
        update = choose_update(task, self._costs, gains)
        assert update is not None, "checked before"
        if not task.int8:
            for layer in layers:
                layer.back_to_float()
        contribution.select(layers, task.shapes, update, order)
        return update, gains

    def _tell(self) -> None:
        """What is trained, and its bytes by formula and, in int8, as they are found in memory."""
        layers, updating = self._layers, self._updating
        grids = [layer.grid for layer in layers if layer.grid is not None]
        tensors = [layer for grid in grids for layer in (grid.codes, grid.worth)] + [
            layer.bias for layer in layers
        ]
        sizes = {
            "weights": sum(map(_bytes, tensors)) + 8 * len(grids),
            "activations": self._saved.total,
            "gradients": _bytes(updating.gradient),
            "optimizer": 0 if updating.momentum is None else _bytes(updating.momentum),
            "channels": sum(len(layer.chosen) for layer in layers if 0 < len(layer.chosen) < len(layer.bias)),
        }  # fmt: skip
        self._setting.tell(
            UPDATE_EVENT,
            way=self._task.update if isinstance(self._task.update, str) else "given",
            budget_bytes=self._task.budget,
            formula_bytes=self._costs.parts(self._update),
            counted_bytes=sizes if self._task.int8 else {},
            sent_bytes=4 * self._costs.numbers(self._update),
            layers=[self._layer_report(place) for place in range(len(layers))],
        )

    def _layer_report(self, place: int) -> dict[str, object]:
        layer, shape, gains = self._layers[place], self._task.shapes[place], self._gains
        gained = None if gains is None else gains.weights.get((place, self._update.shares.get(place, 0.0)))
        return {
            "name": shape.name,
            "channels": shape.outputs,
            "trained_channels": len(layer.chosen),
            "biases": layer.moves,
            "gain": gained,
        }


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def choose_update(task: Task, costs: Costs, gains: Gains | None) -> Update | None:
    """What is trained; None if nothing fits the budget. Without gains ``auto`` is ``last``, which fits when it does."""
    if task.update == "all":
        return contribution.whole_update(task.shapes)
    if isinstance(task.update, str):
        return (
            choose_last_layers(costs, task.budget)
            if gains is None
            else choose_best(costs, gains, task.budget)
        )
    update = _from_first(task.update)
    return update if costs.total(update) <= task.budget else None


def _from_first(shares: Mapping[int, float]) -> Update:
    return Update(min(shares), shares)


def _check(setting: StepSetting, task: Task, costs: Costs) -> None:
    """
    Raises:
        InputError: it cannot be trained like this.
    """
    train = setting.config.train
    if train.optimizer != "sgd":
        remedy = "sparse_update moves int8 weights by SGD; set it to sgd"
        raise InputError("train.optimizer", train.optimizer, remedy)
    if train.clip_value is not None:
        remedy = "sparse_update cuts the norm of the gradient alone; leave it out, and set train.clip_norm"
        raise InputError("train.clip_value", train.clip_value, remedy)
    if choose_update(task, costs, None) is None:
        update = task.update
        least = contribution.head_alone(task.shapes) if isinstance(update, str) else _from_first(update)
        wording = "the head alone" if isinstance(update, str) else "this update"
        remedy = (
            f"{wording} takes {costs.total(least) / 1024:.1f} KiB with micro-batches of {costs.samples}; give more of "
            "it, or a smaller batch.micro_batch"
        )
        raise InputError("model.options.budget_kib", task.budget / 1024, remedy)
