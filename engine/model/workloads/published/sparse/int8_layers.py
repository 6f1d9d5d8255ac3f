"""Convolutions of int8 weights and activations, whose backward keeps no more than the chosen parts need.

Products of codes are whole numbers below 2^24, so a sample's outputs are the same to the bit in any batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import grad as conv_gradients

#: The largest code.
TOP = 127


@dataclass
class Grid:
    """A layer in int8: codes of its weights, what one of them is worth in each output channel, and what a step of what
    it reads and gives is worth.
    """

    codes: Tensor
    worth: Tensor
    read: float
    give: float


class Layer(nn.Module):
    """A convolution with a ReLU; as ``head`` one of the mean over places, with none: logits [samples, outputs].

    Trained are the weights of the output channels ``chosen``, and the biases where it ``moves``. In float32 until it
    has a ``grid``; then gradients of weights are ``leaf``'s, and by codes.
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1, head: bool = False) -> None:
        super().__init__()
        self.head, self.stride, self.size = head, stride, 1 if head else 3
        spread = math.sqrt(2 / (inputs * self.size**2))
        self.weight = nn.Parameter(torch.randn(outputs, inputs, self.size, self.size) * spread)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.grid: Grid | None = None
        self.choose(torch.arange(outputs), True)

    def choose(self, chosen: Tensor, moves: bool) -> None:
        """Train these output channels' weights, and the biases."""
        self.chosen, self.moves = chosen.to(self.bias.device), moves
        self.weight.requires_grad_(len(chosen) > 0)
        self.bias.requires_grad_(moves)
        shape = (len(chosen), *self.weight.shape[1:])
        # One number stands for all: nothing reads it.
        self.leaf = torch.zeros((), device=self.bias.device).expand(shape).requires_grad_(len(chosen) > 0)

    def forward(self, x: Tensor) -> Tensor:
        """[samples, inputs, side, side] -> [samples, outputs, side / stride, side / stride]."""
        if self.head:
            x = x.mean(dim=(2, 3), keepdim=True)
        if self.grid is not None:
            out: Tensor = _QuantizedConvolution.apply(x, self.leaf, self.bias, self)  # type: ignore[no-untyped-call]
        else:
            out = F.conv2d(x, self.weight, self.bias, self.stride, self.size // 2)
        if self.head:
            return out.flatten(1)
        return out if self.grid is not None else F.relu(out)

    def gradient_targets(self) -> list[Tensor]:
        """What gradients are taken of: weights, if some are chosen, and biases, if they move."""
        weight = self.weight if self.grid is None else self.leaf
        return [*([weight] if len(self.chosen) else []), *([self.bias] if self.moves else [])]

    def stored_values(self) -> tuple[Tensor, Tensor]:
        """Weights and biases in the memory that they are kept in."""
        return (self.weight.detach() if self.grid is None else self.grid.codes), self.bias.detach()

    def back_to_float(self) -> None:
        """Hold what the codes say as float32."""
        if self.grid is not None:
            with torch.no_grad():
                self.weight.copy_(self.grid.codes * self.grid.worth[:, None, None, None])
            self.grid = None


class _QuantizedConvolution(torch.autograd.Function):
    """Keeps codes of its input for weights, and a bit of each output where a gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, leaf: Tensor, bias: Tensor, layer: Layer) -> Tensor:
        grid = layer.grid
        assert grid is not None
        codes = (x / grid.read).round().clamp(-TOP, TOP)
        sums = F.conv2d(codes, grid.codes.float(), None, layer.stride, layer.size // 2)
        out = sums * (grid.read * grid.worth)[:, None, None] + bias[:, None, None]
        passes = None
        if not layer.head:
            passes = pack((out > 0) & (out < TOP * grid.give)) if any(ctx.needs_input_grad) else None
            out = (out / grid.give).round().clamp(0, TOP) * grid.give
        stored = codes.to(torch.int8) if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(stored, passes, grid.codes if ctx.needs_input_grad[0] else None)
        ctx.layer, ctx.shape = layer, x.shape
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        stored, passes, codes = ctx.saved_tensors
        layer: Layer = ctx.layer
        grid, place = layer.grid, (layer.stride, layer.size // 2)
        assert grid is not None
        if passes is not None:
            gradient = gradient * unpack(passes, gradient.shape)
        of_input = of_weight = None
        if ctx.needs_input_grad[0]:
            of_input = conv_gradients.conv2d_input(
                ctx.shape, codes * grid.worth[:, None, None, None], gradient, *place
            )
        if stored is not None:
            shape, worth = layer.leaf.shape, grid.worth[layer.chosen, None, None, None]
            of_weight = conv_gradients.conv2d_weight(stored.float(), shape, gradient[:, layer.chosen], *place)
            of_weight *= grid.read * worth
        return of_input, of_weight, gradient.sum(dim=(0, 2, 3)), None


def pack(flags: Tensor) -> Tensor:
    """Eight to a byte."""
    flat = F.pad(flags.flatten().to(torch.uint8), (0, -flags.numel() % 8)).view(-1, 8)
    return (flat << torch.arange(8, dtype=torch.uint8, device=flags.device)).sum(dim=1, dtype=torch.uint8)


def unpack(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """Flags of this shape."""
    bits = packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device) & 1
    return bits.flatten()[: math.prod(shape)].view(*shape)


@torch.no_grad()
def quantize_layers(layers: Sequence[Layer], samples: Tensor) -> None:
    """Give all layers their grids: weights by the largest of an output channel, activations by that of the samples."""
    x = samples
    for layer in layers:
        read = x.mean(dim=(2, 3)) if layer.head else x
        weight, out = layer.weight, layer(x)
        worth = _step(weight.abs().amax(dim=(1, 2, 3)))
        codes = (weight / worth[:, None, None, None]).round().to(torch.int8)
        grid = Grid(codes, worth, float(_step(read.abs().max())), float(_step(out.abs().max())))
        layer.grid, x = grid, out
    for before, layer in pairwise(layers):
        if before.grid is not None and layer.grid is not None and not layer.head:
            layer.grid.read = before.grid.give


def _step(largest: Tensor) -> Tensor:
    return largest.clamp(min=1e-8) / TOP


class SavedBytes:
    """Of the tensors that autograd keeps for a backward; each memory once, and those of ``tensors`` not at all."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._known = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self._found: dict[int, Tensor] = {}
        #: Bytes of all forwards that were counted.
        self.total = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Of the forward in here."""
        with torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor):
            yield
        self.total += sum(tensor.numel() * tensor.element_size() for tensor in self._found.values())
        self._found.clear()

    def _keep(self, tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage().data_ptr()
        if memory not in self._known:
            self._found.setdefault(memory, tensor)  # which keeps the memory from being used again
        return tensor
