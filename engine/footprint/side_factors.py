"""What is trained beside a frozen decoder: its parameters, and what a micro-batch leaves for their gradients. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from engine.config.presets import ModelShape, resolve
from engine.config.run_config import RunConfig


class SideFactor(NamedTuple):
    """A matrix that is trained: its layer, its name there, and its sizes."""

    layer: int
    name: str
    rows: int
    columns: int

    @property
    def elements(self) -> int:
        """Number of values."""
        return self.rows * self.columns


def adapts(config: RunConfig) -> bool:
    """Whether the model is frozen."""
    return config.train.adapt != "none"


def mixes_tokens(layer: int) -> bool:
    """Whether the mixer of a side network behind this layer is one over tokens: every second one is."""
    return layer % 2 == 1


def side_factors(config: RunConfig, layers: range) -> list[SideFactor]:
    """Those of these layers, in the order in which the engine has them."""
    shape, rank = resolve(config.model), config.train.adapt_rank
    if config.train.adapt == "lora":
        return [
            factor
            for layer in layers
            for name, (outputs, inputs) in matrices_of(shape).items()
            for factor in (
                SideFactor(layer, f"{name}.side.down", rank, inputs),
                SideFactor(layer, f"{name}.side.up", outputs, rank),
            )
        ]
    return [factor for layer in layers for factor in _mixer(config, shape, layer)] if adapts(config) else []


def side_parameters(config: RunConfig) -> int:
    """All that is trained."""
    return sum(factor.elements for factor in side_factors(config, range(resolve(config.model).layers)))


def matrices_of(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of a dense block's matrices, by name."""
    hidden, narrow, width = shape.hidden, shape.kv_heads * shape.head_dim, shape.ffn_hidden
    return {
        "attention.query": (hidden, hidden),
        "attention.key": (narrow, hidden),
        "attention.value": (narrow, hidden),
        "attention.output": (hidden, hidden),
        "feed_forward.gate": (width, hidden),
        "feed_forward.up": (width, hidden),
        "feed_forward.down": (hidden, width),
    }


def _mixer(config: RunConfig, shape: ModelShape, layer: int) -> Iterator[SideFactor]:
    rank, sequence = config.train.adapt_rank, config.data.sequence_length
    yield SideFactor(layer, "down", rank, shape.hidden)
    yield SideFactor(layer, "up", shape.hidden, rank)
    if mixes_tokens(layer):
        yield SideFactor(layer, "reads", sequence, rank)
        yield SideFactor(layer, "writes", sequence, rank)


def side_flops(config: RunConfig) -> tuple[int, int]:
    """Of a step's products with what is trained: those of a forward, and those of input gradients that nobody needs,
    since what is in front of the first block, or of a mixer, is frozen. Weights of sums over tokens are made once for
    each micro-batch.
    """
    shape, rank, length = resolve(config.model), config.train.adapt_rank, config.data.sequence_length
    tokens = config.batch.global_batch * length
    if config.train.adapt == "lora":
        return 2 * tokens * side_parameters(config), 2 * tokens * 3 * rank * shape.hidden
    mixing = sum(map(mixes_tokens, range(shape.layers)))
    sums = 2 * tokens * length * rank
    weights = 2 * length * length * rank * (config.batch.global_batch // config.batch.micro_batch)
    narrow = 2 * tokens * 2 * rank * shape.hidden * shape.layers
    return narrow + mixing * (sums + weights), 2 * tokens * rank * shape.hidden
