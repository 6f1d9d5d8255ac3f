"""Seconds of computation of one micro-batch in one block, in the head and in the optimizer, by roofline. Pure.

A product of matrices takes its floating-point operations over the rate that its widths reach, and its bytes over the
memory's bandwidth, whichever is longer (S. Williams et al., Roofline, CACM 2009).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuning.predict.model.cases import FULL, SELECTIVE, Array, Cases
from tuning.predict.model.constants import Constants
from tuning.predict.model.hardware import Accelerator

_VALUE = 2  # bytes of a value in 16 bits
#: Values of a block's forward kept outside of what tp splits, of all of them: two norms, two dropouts, two residuals.
_UNSPLIT = 0.4
#: Megatron's fused softmax needs a multiple of so many heads of a micro-batch, and at most so many tokens
#: (megatron/model/fused_softmax.py of NVIDIA/Megatron-LM commit 0cb36de2d698).
_FUSED_HEADS, _FUSED_TOKENS = 4, 2048
#: Without it scores go to fp32, are scaled, masked, summed and come back: four kernels and 32 bytes a score more than
#: the fused one (6 + 8 + 8 + 8 + 6 for 4). A block has some 60 launches.
_UNFUSED_BYTES, _UNFUSED_LAUNCHES = 32, 4 / 60


class Device(NamedTuple):
    """An accelerator's figures in the format that products run in; a column where cases run on several.

    ``products`` and ``attention`` are what its kernels reach of its peak, in times of those that the constants are for.
    """

    peak: float | Array
    bandwidth: float | Array
    products: float | Array = 1.0
    attention: float | Array = 1.0

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Device:
        """Of some rows."""
        return Device(*(figure[rows] if isinstance(figure, np.ndarray) else figure for figure in self))


def device_of(accelerator: Accelerator, number_format: str = "bf16") -> Device:
    """Figures of a device; fp16 takes the place of a bf16 that it has no rate for.

    Raises:
        KeyError: it has no peak rate in that format.
    """
    rates = accelerator.peak_flops
    sixteen = "fp16" if "bf16" not in rates else "bf16"
    peak = rates[sixteen] if number_format == "bf16" else rates[number_format]
    # Where products are in 8 bits, attention goes on in 16: its share is of that peak.
    slower = rates[sixteen] / peak if number_format == "fp8" else 1.0
    return Device(peak, accelerator.memory_bandwidth, accelerator.products, accelerator.attention * slower)


class BlockSeconds(NamedTuple):
    """Of one micro-batch in one block: its products, attention, element by element work, and the host's floor."""

    products: Array
    attention: Array
    elements: Array
    floor: Array

    @property
    def device(self) -> Array:
        """What the device computes."""
        return self.products + self.attention + self.elements


def forward(cases: Cases, device: Device, constants: Constants) -> BlockSeconds:
    """Of a block's forward on one tp rank."""
    rows = cases.micro_batch * cases.sequence / cases.cp
    products = sum(
        (_product(rows, inner, outer, device, constants) for inner, outer in _products(cases)),
        np.zeros(len(cases)),
    )
    floor = launch_floor(cases, constants) * (1 + _UNFUSED_LAUNCHES * _unfused(cases))
    return BlockSeconds(
        products, _attention(cases, device, constants), _elements(cases, device, constants), floor
    )


def launch_floor(cases: Cases, constants: Constants) -> Array:
    """What the launches of a block's forward take the slowest host of a tp group, or those of the head."""
    return constants.block_seconds * (1 + constants.host_spread * np.log2(cases.tp))


def backward(ahead: BlockSeconds) -> BlockSeconds:
    """Two products for each of forward's."""
    return BlockSeconds(*(2.0 * seconds for seconds in ahead))


def recomputed_flops(cases: Cases, ahead: BlockSeconds) -> BlockSeconds:
    """What backward computes again: a block's whole forward, or its attention core (arXiv 2205.05198)."""
    block = np.where(cases.recompute == FULL, 1.0, 0.0)
    attention = np.where(cases.recompute >= SELECTIVE, 1.0, 0.0)
    return BlockSeconds(
        ahead.products * block, ahead.attention * attention, ahead.elements * block, ahead.floor * block
    )


def head_forward(cases: Cases, device: Device, constants: Constants) -> Array:
    """Of the last stage's logits and their loss: a product, and five passes over logits in fp32."""
    rows = cases.micro_batch * cases.sequence / cases.cp
    width = cases.vocabulary / cases.tp
    logits = 5 * 4 * rows * width / (device.bandwidth * constants.memory_share)
    product = _product(rows, cases.hidden, width, device, constants)
    return product / constants.odd_share ** (1 - _alignment(np.floor(width))) + logits


def _alignment(width: Array) -> Array:
    """From 1, of rows that begin at 16 bytes, through 2/3 and 1/3 at 8 and 4 bytes, to 0 at 2."""
    halvings: Array = np.sum([width % step == 0 for step in (2, 4, 8)], axis=0) / 3
    return halvings


def update(cases: Cases, elements: Array, device: Device, constants: Constants) -> Array:
    """Of the optimizer's step over the parameters that a rank updates."""
    bytes_ = elements * (cases.optimizer_bytes + cases.gradient_bytes + cases.weight_bytes)
    return constants.update_passes * bytes_ / (device.bandwidth * constants.memory_share)


def _products(cases: Cases) -> Iterator[tuple[Array, Array]]:
    """Inner and outer width of each product of a block, on one tp rank."""
    key_value = 2 * cases.kv_heads * cases.head_dim
    yield cases.hidden, (cases.hidden + key_value) / cases.tp
    yield cases.hidden / cases.tp, cases.hidden
    yield cases.hidden, (cases.mlp_matrices - 1) * cases.ffn_hidden / cases.tp
    yield cases.ffn_hidden / cases.tp, cases.hidden


def _product(rows: Array, inner: Array, outer: Array, device: Device, constants: Constants) -> Array:
    half = constants.gemm_half_width
    share = (
        constants.gemm_share
        * device.products
        * inner
        / (inner + half)
        * outer
        / (outer + half)
        * rows
        / (rows + half)
    )
    bytes_ = _VALUE * (rows * inner + inner * outer + rows * outer)
    computing = 2 * rows * inner * outer / (device.peak * share)
    return np.maximum(computing, bytes_ / (device.bandwidth * constants.memory_share))


def _attention(cases: Cases, device: Device, constants: Constants) -> Array:
    """Scores and their sums: two products of s x s x h / t; causal ones count in full where scores are written."""
    scores = cases.micro_batch * cases.heads / cases.tp * cases.sequence**2 / cases.cp
    flops = 4 * scores * cases.head_dim
    fused = flops / 2 / (device.peak * constants.attention_share * device.attention)
    bytes_ = constants.score_passes * _VALUE + _UNFUSED_BYTES * _unfused(cases)
    passes = bytes_ * scores / (device.bandwidth * constants.memory_share)
    written = flops / (device.peak * constants.gemm_share * 0.5) + passes
    return np.where(cases.flash > 0, fused, written)


def _unfused(cases: Cases) -> Array:
    """1 where scores that are written cannot have one fused softmax, else 0."""
    heads = cases.micro_batch * cases.heads / cases.tp
    refused = (heads % _FUSED_HEADS != 0) | (cases.sequence > _FUSED_TOKENS)
    return np.where((cases.flash == 0) & refused, 1.0, 0.0)


def _elements(cases: Cases, device: Device, constants: Constants) -> Array:
    """Norms, activations, residuals: passes over hidden values, of which tp splits a part or all."""
    values = cases.micro_batch * cases.sequence / cases.cp * cases.hidden
    unsplit = np.where(cases.sequence_parallel > 0, _UNSPLIT / cases.tp, _UNSPLIT)
    share = unsplit + (1 - _UNSPLIT) / cases.tp
    return (
        constants.block_passes
        * 2
        * cases.value_bytes
        * values
        * share
        / (device.bandwidth * constants.memory_share)
    )
