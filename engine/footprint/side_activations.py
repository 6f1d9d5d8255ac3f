"""Bytes of activations that a micro-batch leaves where a decoder is frozen, by formula. Pure.

With LoRA a block keeps what its backward takes, but not what norms' and matrices' own gradients would; the first block
has no gradient in front of it. With LoSA blocks keep nothing, mixers their input and what is narrow.
"""

from __future__ import annotations

from engine.config.run_config import RunConfig
from engine.footprint.activations import (
    FP32_BYTES,
    ActivationBytes,
    Part,
    Sizes,
    block_bytes,
    boundary_bytes,
    head_bytes,
    sizes_of,
    stage_activations,
)
from engine.footprint.side_factors import adapts, matrices_of, mixes_tokens


def kept_of(config: RunConfig, part: Part) -> ActivationBytes:
    """What one micro-batch leaves in a stage, whatever of it is trained; rules keep a frozen model in one stage."""
    if not adapts(config):
        return stage_activations(config, part)
    sizes = sizes_of(config)
    side_bytes = (
        _factors(config, sizes, part) if config.train.adapt == "lora" else _mixers(config, sizes, part)
    )
    return ActivationBytes(boundary_bytes(config, part, copied=False) + side_bytes + _head(config, sizes))


def _factors(config: RunConfig, sizes: Sizes, part: Part) -> int:
    """Blocks without the normalized values of two norms; what is between two factors; and the first norm, which keeps
    its output alone.
    """
    narrow = sizes.element * sizes.tokens * config.train.adapt_rank * len(matrices_of(sizes.shape))
    first = FP32_BYTES * (sizes.hidden + sizes.tokens)
    return part.layers * (block_bytes(config, "none") - 2 * FP32_BYTES * sizes.hidden + narrow) - first


def _mixers(config: RunConfig, sizes: Sizes, part: Part) -> int:
    """Their inputs; between two factors what goes through the bend and what comes out; of tokens the weights of their
    sums, too, and what is summed. The last state is multiplied by a length for each token.
    """
    rank, length = config.train.adapt_rank, config.data.sequence_length
    total = sizes.element * sizes.tokens
    for layer in range(part.start, part.start + part.layers):
        total += sizes.element * (sizes.hidden + 2 * sizes.tokens * rank)
        if mixes_tokens(layer):
            total += sizes.element * (sizes.tokens * rank + length * length) + FP32_BYTES * length * (
                rank + 1
            )
    return total


def _head(config: RunConfig, sizes: Sizes) -> int:
    """As of a head that learns, without the normalized values and what the matrix reads."""
    return head_bytes(config) - (FP32_BYTES + sizes.element) * sizes.hidden
