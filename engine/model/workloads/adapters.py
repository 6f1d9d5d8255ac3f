"""What is trained beside a frozen model: factors of its matrices, or a side network that reads its blocks.

LoRA (arXiv 2106.09685) adds to each product of a block's matrix that of two factors of low rank. Their gradients need
a backward through all that comes behind them, so a block keeps what its own backward takes. There is no factor that
scales the sum: with Adam it does what the learning rate does (section 4.1 there).

LoSA (arXiv 2402.02887) leaves the backbone without a backward. A side state, zero at first, goes beside the blocks: the
mixer behind each block reads what the block gave and the state, and changes the state by a perceptron of low rank, over
channels and over tokens in turn. Three things are ours. Mixers of tokens may only look back: they narrow the channels
first, then take for each token a weighted sum of those up to it, whose weights are the lower triangle of a product of
two factors; where a sample is one thing, such as an image, it is a sum over all its places, as in the paper. What a
block gave is read by its direction, in units of its length, and the last state is added in units of the last block's.
And the frozen parts behind the blocks give the output, through which gradients come back.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

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
    """One over the tokens up to each, or over all of them, in few channels: [sequence, batch, hidden] -> the same."""

    def __init__(self, hidden: int, rank: int, sequence: int, looks_back: bool = True) -> None:
        super().__init__(hidden, hidden, rank)
        self.looks_back = looks_back
        self.reads, self.writes = (nn.Parameter(torch.empty(sequence, rank)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """The change of the state."""
        narrow = linear(x, self.down)
        if self.looks_back:
            scale = torch.arange(1, len(x) + 1, device=x.device, dtype=torch.float32).rsqrt()
            weights = ((self.writes * scale.unsqueeze(1)) @ self.reads.t()).tril()
        else:
            weights = self.writes / math.sqrt(len(x)) @ self.reads.t()
        mixed = (weights.to(x.dtype) @ narrow.flatten(1)).view_as(narrow)
        return linear(F.gelu(mixed), self.up)

    def fill(self, numbers: torch.Generator) -> None:
        """Sums over tokens begin about as large as what is summed."""
        super().fill(numbers)
        with torch.no_grad():
            for factor in (self.reads, self.writes):
                factor.normal_(0.0, factor.shape[1] ** -0.25, generator=numbers)


class MixerInput(NamedTuple):
    """What mixers read: the width of a token, how many there are, and whether each sees those up to it alone."""

    hidden: int
    sequence: int
    looks_back: bool = True


def make_mixer(layer: int, shape: MixerInput, rank: int) -> LowRank:
    """That of a layer of the whole model."""
    if mixes_tokens(layer):
        return TokenMixer(shape.hidden, rank, shape.sequence, shape.looks_back)
    return ChannelMixer(shape.hidden, shape.hidden, rank)


class SideNetwork(nn.Module):
    """The mixers behind each of the backbone's blocks."""

    tp_dim = None

    def __init__(self, layers: Sequence[int], shape: MixerInput, rank: int) -> None:
        super().__init__()
        self.mixers = nn.ModuleDict({str(layer): make_mixer(layer, shape, rank) for layer in layers})

    def forward(self, activations: Iterator[Tensor]) -> Tensor:
        """What the last block gave, changed by the state; ``activations`` computes block after block."""
        state: Tensor | None = None
        features: Tensor | None = None
        for mixer, features in zip(self.mixers.values(), activations, strict=True):
            x = features / _length(features)
            change = mixer(x if state is None else x + state)
            state = change if state is None else state + change
        assert features is not None and state is not None
        return features + state * _length(features)


class SideDecoder(Decoder):
    """A decoder whose blocks are frozen and run without gradients, and a network beside them."""

    def __init__(self, *arguments: Any, rank: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        shape = MixerInput(arguments[0].hidden, named["sequence_length"])
        self.side = SideNetwork(self.numbers, shape, rank)

    def units(self) -> list[nn.Module]:
        """With the network, which is used beside its blocks."""
        return [*super().units(), self.side]

    def _run_blocks(self, blocks: Sequence[Callable[..., Tensor]], x: Tensor) -> Tensor:
        steps = [functools.partial(block, rotary=self.rotary) for block in blocks]
        out: Tensor = self.side(run_without_gradients(self._embed, steps, x))
        return out


def run_without_gradients(
    enter: Callable[[Tensor], Tensor], blocks: Sequence[Callable[[Tensor], Tensor]], x: Tensor
) -> Iterator[Tensor]:
    """What each block gives; nothing of it has a gradient, between two of them there may be some."""
    with torch.no_grad():
        x = enter(x)
    for block in blocks:
        with torch.no_grad():
            x = block(x)
        yield x


def attach_adapter(decoder: Decoder, train: Train) -> None:
    """Freeze a decoder, and put beside it what ``train.adapt`` asks for."""
    if train.adapt == "none":
        return
    freeze(decoder)
    if isinstance(decoder, SideDecoder):
        decoder.side.requires_grad_(True)
        return
    for matrix in list(decoder.blocks.modules()):
        if isinstance(matrix, Linear):
            outputs, inputs = matrix.weight.shape
            matrix.side = LowRank(outputs, inputs, train.adapt_rank)


def freeze(model: nn.Module) -> None:
    """All that it has."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)


def stand_beside_linears(blocks: nn.Module, rank: int) -> None:
    """Factors for each of torch's own matrices."""
    for matrix in [module for module in blocks.modules() if isinstance(module, nn.Linear)]:
        matrix.side = LowRank(matrix.out_features, matrix.in_features, rank)
        matrix.register_forward_hook(_add_side)


def _add_side(matrix: nn.Module, inputs: tuple[Tensor, ...], product: Tensor) -> Tensor:
    side = matrix.side
    assert isinstance(side, LowRank)
    added: Tensor = product + side(inputs[0])
    return added


def fill_sides(model: nn.Module, seed: int) -> None:
    """Values from names and the seed alone: every layout starts from the same."""
    for name, module in model.named_modules():
        if isinstance(module, LowRank):
            module.fill(torch.Generator().manual_seed(name_seed(name, seed)))


def _length(features: Tensor) -> Tensor:
    """Of each token's, as the root of its mean square."""
    wide = features.float()
    return (wide.square().mean(-1, keepdim=True) + _EPSILON).sqrt().to(features.dtype)
