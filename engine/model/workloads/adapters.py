"""What is trained beside a frozen decoder: factors of its matrices, or a side network that reads its blocks.

LoRA (arXiv 2106.09685) adds to each product of a block's matrix that of two factors of low rank. Their gradients need
a backward through all that comes behind them, so a block keeps what its own backward takes. There is no factor that
scales the sum: with Adam it does what the learning rate does (section 4.1 there).

LoSA (arXiv 2402.02887) leaves the backbone without a backward. A side state, zero at first, goes beside the blocks: the
mixer behind each block reads what the block gave and the state, and changes the state by a perceptron of low rank, over
channels and over tokens in turn. Three things are ours. Mixers of tokens may only look back: they narrow the channels
first, then take for each token a weighted sum of those up to it, whose weights are the lower triangle of a product of
two factors. What a block gave is read by its direction, in units of its length, and the last state is added in units
of the last block's. And the frozen last norm and head give the logits, through which gradients come back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.config.sections import Train
from engine.footprint.side_factors import mixes_tokens
from engine.model.decoder import Decoder, Linear
from engine.model.experts.mixture import name_seed
from engine.model.linear import linear

_EPSILON = 1e-5


class LowRank(nn.Module):
    """Two factors, of which the second is zero at first: [..., in] -> [..., out]."""

    tp_dim = None

    def __init__(self, outputs: int, inputs: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, inputs))
        self.up = nn.Parameter(torch.empty(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        """In the dtype of ``x``."""
        return linear(linear(x, self.down), self.up)

    def fill(self, numbers: torch.Generator) -> None:
        """With the values that training starts from."""
        with torch.no_grad():
            self.down.normal_(0.0, 1 / math.sqrt(self.down.shape[1]), generator=numbers)
            self.up.zero_()


class ChannelMixer(LowRank):
    """A perceptron over the channels of each token: [sequence, batch, hidden] -> the same."""

    def forward(self, x: Tensor) -> Tensor:
        """The change of the state."""
        return linear(F.gelu(linear(x, self.down)), self.up)


class TokenMixer(LowRank):
    """One over the tokens up to each, in few channels: [sequence, batch, hidden] -> the same."""

    def __init__(self, hidden: int, rank: int, sequence: int) -> None:
        super().__init__(hidden, hidden, rank)
        self.reads, self.writes = (nn.Parameter(torch.empty(sequence, rank)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """The change of the state."""
        narrow = linear(x, self.down)
        seen = torch.arange(1, len(x) + 1, device=x.device, dtype=torch.float32).rsqrt()
        weights = ((self.writes * seen.unsqueeze(1)) @ self.reads.t()).tril()
        mixed = (weights.to(x.dtype) @ narrow.flatten(1)).view_as(narrow)
        return linear(F.gelu(mixed), self.up)

    def fill(self, numbers: torch.Generator) -> None:
        """Sums over tokens begin about as large as what is summed."""
        super().fill(numbers)
        with torch.no_grad():
            for factor in (self.reads, self.writes):
                factor.normal_(0.0, factor.shape[1] ** -0.25, generator=numbers)


def mixer_behind(layer: int, hidden: int, rank: int, sequence: int) -> LowRank:
    """That of a layer of the whole model."""
    if mixes_tokens(layer):
        return TokenMixer(hidden, rank, sequence)
    return ChannelMixer(hidden, hidden, rank)


class SideNetwork(nn.Module):
    """The mixers behind each of the backbone's blocks."""

    tp_dim = None

    def __init__(self, layers: Sequence[int], hidden: int, rank: int, sequence: int) -> None:
        super().__init__()
        self.mixers = nn.ModuleDict(
            {str(layer): mixer_behind(layer, hidden, rank, sequence) for layer in layers}
        )

    def forward(self, given: Iterator[Tensor]) -> Tensor:
        """What the last block gave, changed by the state; ``given`` computes block after block."""
        state: Tensor | None = None
        features: Tensor | None = None
        for mixer, features in zip(self.mixers.values(), given, strict=True):
            x = features / _length(features)
            change = mixer(x if state is None else x + state)
            state = change if state is None else state + change
        assert features is not None and state is not None
        return features + state * _length(features)


class SideDecoder(Decoder):
    """A decoder whose blocks are frozen and run without gradients, and a network beside them."""

    def __init__(self, *arguments: Any, rank: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        shape = arguments[0]
        self.side = SideNetwork(self.numbers, shape.hidden, rank, named["sequence_length"])

    def units(self) -> list[nn.Module]:
        """With the network, which is used beside its blocks."""
        return [*super().units(), self.side]

    def _through(self, blocks: Sequence[Callable[..., Tensor]], x: Tensor) -> Tensor:
        out: Tensor = self.side(self._features(blocks, x))
        return out

    def _features(self, blocks: Sequence[Callable[..., Tensor]], x: Tensor) -> Iterator[Tensor]:
        """What each block gives; nothing of it has a gradient, between two of them there may be some."""
        with torch.no_grad():
            x = self._entered(x)
        for block in blocks:
            with torch.no_grad():
                x = block(x, self.rotary)
            yield x


def stand_beside(decoder: Decoder, train: Train) -> None:
    """Freeze a decoder, and put beside it what ``train.adapt`` asks for."""
    if train.adapt == "none":
        return
    beside = decoder.side if isinstance(decoder, SideDecoder) else None
    for parameter in decoder.parameters():
        parameter.requires_grad_(False)
    if beside is not None:
        beside.requires_grad_(True)
        return
    for matrix in list(decoder.blocks.modules()):
        if isinstance(matrix, Linear):
            outputs, inputs = matrix.weight.shape
            matrix.side = LowRank(outputs, inputs, train.adapt_rank)


def fill_sides(decoder: Decoder, seed: int) -> None:
    """Values from names and the seed alone: every layout starts from the same."""
    for name, module in decoder.named_modules():
        if isinstance(module, LowRank):
            module.fill(torch.Generator().manual_seed(name_seed(name, seed)))


def _length(features: Tensor) -> Tensor:
    """Of each token's, as the root of its mean square."""
    wide = features.float()
    return (wide.square().mean(-1, keepdim=True) + _EPSILON).sqrt().to(features.dtype)
