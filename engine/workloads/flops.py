"""Floating-point operations of a step by formula. Pure."""

from __future__ import annotations

from engine.config import RunConfig
from engine.presets import ModelShape, resolve


def model_flops_per_token(shape: ModelShape, sequence_length: int) -> float:
    """Forward and backward FLOPs per token without recomputation.

    Each multiply-add of a matrix counts 2, the backward pass twice the forward pass (convention of
    arXiv 2104.04473, section 5.1); attention is counted in full, without the saving of the causal mask.
    """
    matrices = shape.layers * (shape.layer_parameters - 2 * shape.hidden) + shape.vocabulary * shape.hidden
    attention = shape.layers * 2 * sequence_length * shape.hidden
    return 3.0 * 2.0 * (matrices + attention)


def model_flops_per_step(config: RunConfig) -> float:
    """Model FLOPs of one optimizer step over the global batch."""
    tokens = config.batch.global_batch * config.data.sequence_length
    return tokens * model_flops_per_token(resolve(config.model), config.data.sequence_length)
