"""SGD on the chosen parts of layers, in int8 or float32.

The gradient of a code is that of its weight times what a code is worth, and a code is the weight over that. Divided by
the square of it, the ratio of gradient and code is that of float32 (arXiv 2206.15472, quantization-aware scaling).
Codes are rounded up or down by chance, so that in the mean they move by less than one: that is this project's, whose
int8 weights have no float32 copy beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.comm.channel import Channel
from engine.model.workloads.published.sparse.int8_layers import TOP, Layer


@dataclass(frozen=True)
class Rule:
    """``clip`` is the largest norm of the gradient in float32 weights."""

    momentum: float
    decay: float
    clip: float | None
    scaled: bool
    seed: int


class SparseOptimizer:
    """Gradients of what is trained, one behind the other in one memory, and momenta where there are any."""

    def __init__(self, layers: Sequence[Layer], rule: Rule) -> None:
        self._layers, self._rule = layers, rule
        self._shapes = [
            layer.bias.shape if not is_weight else layer.leaf.shape for layer, is_weight in self._parts()
        ]
        device = layers[0].bias.device
        self.gradient = torch.zeros(sum(shape.numel() for shape in self._shapes), device=device)
        self.momentum = torch.zeros_like(self.gradient) if rule.momentum else None

    def take(self, loss: Tensor) -> None:
        """Add a micro-batch's gradient."""
        wanted = [tensor for layer in self._layers for tensor in layer.gradient_targets()]
        gradients = torch.autograd.grad(loss, wanted)
        for (layer, is_weight), gradient_sum, gradient in zip(
            self._parts(), self._views(self.gradient), gradients, strict=True
        ):
            gradient_sum.add_(gradient[layer.chosen] if is_weight and layer.grid is None else gradient)

    @torch.no_grad()
    def update(self, micro_batches: int, channel: Channel | None, rate: float, turn: int) -> float:
        """Average over micro-batches and ranks, move, and begin anew; the norm of the gradient before it is clipped."""
        if channel is not None:
            channel.all_reduce(self.gradient)
        self.gradient /= micro_batches * (1 if channel is None else channel.size)
        norm, clip = self._norm(), self._rule.clip
        if clip is not None and norm > clip:
            self.gradient *= clip / norm
        self._by_weights()
        if self.momentum is not None:
            self.momentum.mul_(self._rule.momentum).add_(self.gradient)
        chance = torch.Generator(self.gradient.device).manual_seed(self._rule.seed + (turn + 1 << 32))
        moves = self._views(self.gradient if self.momentum is None else self.momentum)
        for (layer, is_weight), move in zip(self._parts(), moves, strict=True):
            if is_weight:
                _move(layer, rate * move, chance)
            else:
                layer.bias.sub_(rate * move)
        self.gradient.zero_()
        return norm

    def channel_norms(self) -> list[Tensor]:
        """Of the gradients of each layer's weights, in float32 weights, by chosen output channel."""
        return [
            (view / _worth(layer)).flatten(1).norm(dim=1)
            for (layer, is_weight), view in zip(self._parts(), self._views(self.gradient), strict=True)
            if is_weight
        ]

    def _norm(self) -> float:
        squares = [
            (view / _worth(layer) if is_weight else view).square().sum()
            for (layer, is_weight), view in zip(self._parts(), self._views(self.gradient), strict=True)
        ]
        return float(torch.stack(squares).sum().sqrt())

    def _by_weights(self) -> None:
        """Make changes of the numbers that weights are held as of the gradients of these, and let weights decay."""
        for (layer, is_weight), view in zip(self._parts(), self._views(self.gradient), strict=True):
            if is_weight:
                if self._rule.scaled:
                    view.div_(_worth(layer) ** 2)
                view.add_(self._rule.decay * layer.stored_values()[0][layer.chosen])

    def _parts(self) -> Iterator[tuple[Layer, bool]]:
        """Layers whose weights, and whose biases, are trained: in the order of ``Layer.gradient_targets``."""
        for layer in self._layers:
            yield from [(layer, True)] * (len(layer.chosen) > 0) + [(layer, False)] * layer.moves

    def _views(self, flat: Tensor) -> Iterator[Tensor]:
        parts = flat.split([shape.numel() for shape in self._shapes])
        return (part.view(shape) for part, shape in zip(parts, self._shapes, strict=True))


def _worth(layer: Layer) -> Tensor:
    """Of a number that a weight is held as, by chosen channel."""
    if layer.grid is None:
        return layer.bias.new_ones(())
    return layer.grid.worth[layer.chosen, None, None, None]


def _move(layer: Layer, move: Tensor, chance: torch.Generator) -> None:
    if layer.grid is None:
        layer.weight[layer.chosen] -= move
        return
    codes = layer.grid.codes
    drawn = torch.rand(move.shape, generator=chance, device=move.device)
    codes[layer.chosen] = (codes[layer.chosen] - move + drawn).floor().clamp(-TOP, TOP).to(torch.int8)
