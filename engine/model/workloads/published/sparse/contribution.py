"""What training each part of a network alone brings: the start it has before, channels in order, and losses after.

Contribution analysis of arXiv 2206.15472: by held-out loss after a few steps, each from the same start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.workloads.published.sparse.int8_layers import Layer
from engine.model.workloads.published.sparse.update_choice import SHARES, Gains, LayerShape, Update
from engine.model.workloads.published.sparse.update_rule import Rule, SparseOptimizer
from engine.model.workloads.vision import DrawnImages

#: Images in a step of the start and of the analysis, and those on which a loss is taken.
BATCH, HELD_OUT = 32, 256
_START_RATE = 2e-3
#: Samples from here on are for the analysis: the run trains on those before, and is validated on others.
_APART = 1 << 30

Batch = tuple[Tensor, Tensor]


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in one order, however many threads a layout gives a rank."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def held_out_batches(images: DrawnImages, batches: int, device: torch.device) -> list[Batch]:
    """Batches that no run trains on."""
    return [_tensors(images, _APART + place * BATCH, BATCH, device) for place in range(batches)]


def held_out_batch(images: DrawnImages, device: torch.device) -> Batch:
    """What losses are taken on, apart from those of ``held_out_batches`` and from the run's."""
    return _tensors(images, 2 * _APART, HELD_OUT, device)


def _tensors(images: DrawnImages, first: int, count: int, device: torch.device) -> Batch:
    drawn, classes = images.training(first, count)
    return torch.from_numpy(drawn).to(device), torch.from_numpy(classes).to(device)


def forward(layers: Sequence[Layer], x: Tensor) -> Tensor:
    """Logits."""
    for layer in layers:
        x = layer(x)
    return x


def train_start(layers: Sequence[Layer], images: DrawnImages, steps: int) -> None:
    """Train all in float32 by Adam."""
    weights = [target for layer in layers for target in layer.gradient_targets()]
    optimizer = torch.optim.Adam(
        [weight for weight in weights if isinstance(weight, torch.nn.Parameter)], _START_RATE
    )
    for step in range(steps):
        inputs, classes = _tensors(images, step * BATCH, BATCH, layers[0].bias.device)
        optimizer.zero_grad()
        F.cross_entropy(forward(layers, inputs), classes).backward()
        optimizer.step()
    optimizer.zero_grad()


@dataclass(frozen=True)
class Analysis:
    """Trains layers that are in int8 by ``rule`` at ``rate``, a few ``batches`` each time, and puts them back."""

    layers: Sequence[Layer]
    shapes: Sequence[LayerShape]
    rule: Rule
    rate: float
    batches: Sequence[Batch]
    held_out: Batch

    def order(self) -> list[Tensor]:
        """Each layer's output channels, those first whose weights have the largest gradients."""
        select(self.layers, self.shapes, whole_update(self.shapes), None)
        updating = SparseOptimizer(self.layers, self.rule)
        for inputs, classes in self.batches:
            updating.take(F.cross_entropy(forward(self.layers, inputs), classes))
        return [norm.argsort(descending=True) for norm in updating.channel_norms()]

    def gains(self, order: Sequence[Tensor]) -> Gains:
        """Of biases from each layer on, and of weights with these, all with the head."""
        head = len(self.layers) - 1
        alone = {head: 1.0}
        biases = [self.loss(Update(since, alone), order) for since in range(head + 1)]
        weights = {
            (place, share): biases[place] - self.loss(Update(place, {place: share, **alone}), order)
            for place in range(head)
            for share in SHARES
        }
        return Gains([biases[head] - bias for bias in biases], weights)

    def loss(self, update: Update, order: Sequence[Tensor]) -> float:
        """Held-out, after training this alone."""
        select(self.layers, self.shapes, update, order)
        before = [[value.clone() for value in layer.stored_values()] for layer in self.layers]
        updating = SparseOptimizer(self.layers, self.rule)
        for turn, (inputs, classes) in enumerate(self.batches):
            updating.take(F.cross_entropy(forward(self.layers, inputs), classes))
            updating.update(1, None, self.rate, turn)
        with torch.no_grad():
            inputs, classes = self.held_out
            loss = float(F.cross_entropy(forward(self.layers, inputs), classes))
            for layer, values in zip(self.layers, before, strict=True):
                for stored, value in zip(layer.stored_values(), values, strict=True):
                    stored.copy_(value)
        return loss


def whole_update(shapes: Sequence[LayerShape]) -> Update:
    """All weights and biases."""
    return Update(0, dict.fromkeys(range(len(shapes)), 1.0))


def head_alone(shapes: Sequence[LayerShape]) -> Update:
    """Its weights and biases."""
    head = len(shapes) - 1
    return Update(head, {head: 1.0})


def select(
    layers: Sequence[Layer], shapes: Sequence[LayerShape], update: Update, order: Sequence[Tensor] | None
) -> None:
    """Train this from now on; of channels those that come first."""
    for place, (layer, shape) in enumerate(zip(layers, shapes, strict=True)):
        count = shape.rows(update.shares.get(place, 0.0))
        first = torch.arange(shape.outputs) if order is None else order[place]
        layer.choose(first[:count].sort().values, place >= update.since)
