"""Bytes that a rank holds at the peak of a step, in closed form, by what they are; many configurations at a time. Pure.

Published formulas of what must be there (arXiv 2205.05198 for activations), and a few constants for what a trainer and
its allocator add, which ``peaks`` fits to measured peaks. ``footprints`` counts this repo's own engine instead.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tuning.predict.model.cases import FULL, NO_RECOMPUTE, Array, Cases

#: Which rank of a pipeline: the first has the embedding and most in flight, the last the head.
Stage = Literal["first", "middle", "last"]
STAGES: tuple[Stage, ...] = ("first", "middle", "last")
_FP32 = 4


@dataclass(frozen=True, slots=True)
class MemoryConstants:
    """What a trainer adds to the formulas; all positive.

    - ``activation_share``: activations over the formula: copies, and the allocator's gaps.
    - ``gradient_copies``: 16-bit gradients beside the summed ones, in copies of a rank's weights.
    - ``bucket_copies``: the same of dp's buckets, where there is dp.
    - ``logit_copies``, ``later_logit_copies``: fp32 copies of logits, and more from the second micro-batch on.
    - ``passing_values``: values for each hidden one of a micro-batch that tp does not split, while a block works.
    - ``message_copies``: copies of each in-flight micro-batch's input or output, where there is a pipeline.
    - ``waiting_values``: values for each hidden one that a block's collectives leave behind until the device has come
      to them, of those layers that the host is ahead.
    - ``waiting_layers``: most layers that the host can be ahead: a queue of 1,024 launches over about 50 a layer.
    - ``base_bytes``: whatever the configuration.
    """

    activation_share: float = 1.15
    gradient_copies: float = 0.6
    bucket_copies: float = 0.7
    logit_copies: float = 2.0
    later_logit_copies: float = 0.7
    passing_values: float = 3.0
    message_copies: float = 1.5
    waiting_values: float = 2.4
    waiting_layers: float = 21.0
    base_bytes: float = 1.7e8


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of one rank at its peak, by what they are."""

    parameters: Array
    gradients: Array
    optimizer: Array
    activations: Array
    buckets: Array
    logits: Array
    workspace: Array
    messages: Array
    waiting: Array
    base: Array

    @property
    def bytes(self) -> Array:
        """All of them."""
        terms: Array = np.sum([getattr(self, field.name) for field in fields(self)], axis=0)
        return terms


def held(cases: Cases, stage: Stage, constants: MemoryConstants, waiting: Array | float = 1.0) -> Held:
    """What the ranks of a stage hold. ``waiting``: 1 where the host runs ahead of the device, 0 where not."""
    elements, flight = rank_elements(cases, stage), in_flight(cases, stage)
    weights = elements * cases.weight_bytes
    layers = stage_layers(cases, stage)
    hidden = hidden_values(cases) * cases.value_bytes
    copies = constants.logit_copies + np.where(cases.micro_batches > 1, constants.later_logit_copies, 0.0)
    return Held(
        parameters=np.where(cases.zero_stage >= 3, weights / _shards(cases), weights),
        gradients=_gradients(cases, elements) + constants.gradient_copies * weights,
        optimizer=elements * cases.optimizer_bytes / np.where(cases.zero_stage >= 1, _shards(cases), 1.0),
        activations=constants.activation_share * flight * layers * layer_activations(cases),
        buckets=np.where(_shards(cases) > 1, constants.bucket_copies * weights, 0.0),
        logits=np.where(_has_head(cases, stage), copies * _FP32 * _logits(cases), 0.0),
        workspace=constants.passing_values * hidden,
        messages=np.where(cases.pp > 1, constants.message_copies * flight * hidden / cases.tp, 0.0),
        waiting=waiting * _waiting(cases, layers, flight, constants),
        base=np.full(len(cases), constants.base_bytes),
    )


def fullest(cases: Cases, constants: MemoryConstants, waiting: Array | float = 0.0) -> Array:
    """Bytes of the stage that holds most; a device that runs full gives back what waits."""
    most: Array = np.max([held(cases, stage, constants, waiting).bytes for stage in STAGES], axis=0)
    return most


def hidden_values(cases: Cases) -> Array:
    """Hidden values of one micro-batch on one cp rank: s b h / c."""
    return cases.sequence / cases.cp * cases.micro_batch * cases.hidden


def layer_activations(cases: Cases) -> Array:
    """Bytes that one layer keeps of one micro-batch until its backward, on one tp rank.

    arXiv 2205.05198, section 4, in 16 bits: s b h (34 + 5 a s / h) of a GPT's layer; by tp
    s b h (10 + 24 / t + 5 a s / (h t)); by tp with sequence parallelism all of it over t; with the attention core
    recomputed without 5 a s / h; 2 s b h with all recomputed. Of the 34, attention has 11, the feed-forward part 19,
    norms 4. Without dropout its masks are not there (1 + 1 and, of 5 a s / h, 3); FlashAttention (arXiv 2205.14135)
    keeps no scores; a gated feed-forward part keeps two products, an activation and their product, 4 f for each value.
    """
    values, mask = cases.value_bytes * hidden_values(cases), hidden_values(cases) * (cases.dropout > 0)
    key_value = cases.kv_heads / cases.heads
    inputs, masks = (
        4 * values,
        2 * mask,
    )  # two norms, two first products; dropout behind attention and behind the rest
    attention = (2 + 2 * key_value) * values  # queries, keys, values, and what the last product takes
    gated = np.where(cases.mlp_matrices > 2, 4.0, 2.0)
    inner = attention + gated * values * cases.ffn_hidden / cases.hidden + _scores(cases)
    unsplit = np.where(cases.sequence_parallel > 0, cases.tp, 1.0)
    kept = (inputs + masks) / unsplit + inner / cases.tp
    return np.where(cases.recompute == FULL, values / unsplit, kept)


def in_flight(cases: Cases, stage: Stage) -> Array:
    """Micro-batches' worth of a rank's layers that it keeps: min(p - i, m) in 1F1B (arXiv 2104.04473, section 2.2).

    Interleaved with v chunks the first rank keeps p (1 + (p - 1) / (p v)) of them; see
    ``engine.schedules.closed_forms.peak_in_flight``, which counts the same in chunks.
    """
    left = cases.pp - 1 - _number(cases, stage)
    count = cases.micro_batches
    turn = np.ceil(count / np.maximum(1, count // cases.pp))
    warm_up = np.where(cases.chunks > 1, (cases.chunks - 1) * turn + 2 * left, left)
    return np.asarray(np.minimum(warm_up + 1, count * cases.chunks) / cases.chunks, np.float64)


def stage_layers(cases: Cases, stage: Stage) -> Array:
    """Layers of a stage's ranks, all chunks together."""
    even = np.ceil(cases.layers / cases.pp)
    dealt = cases.last_layers + cases.other_layers > 0
    other = np.where(cases.other_layers > 0, cases.other_layers, even)
    ends = (_number(cases, stage) == cases.pp - 1) & dealt
    return np.where(cases.pp == 1, cases.layers, np.where(ends, cases.last_layers, other))


def rank_elements(cases: Cases, stage: Stage) -> Array:
    """Parameters of one tp rank of a stage before ZeRO: its layers, and the vocabulary's matrix at either end."""
    word = cases.vocabulary * cases.hidden
    first, last = _number(cases, stage) == 0, _has_head(cases, stage)
    both = np.where(first & (cases.tied > 0), 0.0, word)
    ends = np.where(first, cases.embedding_parameters, 0.0) + np.where(last, both, 0.0)
    return np.asarray((stage_layers(cases, stage) * cases.block_parameters + ends) / cases.tp, np.float64)


def _number(cases: Cases, stage: Stage) -> Array:
    numbers = {"first": np.zeros(len(cases)), "middle": np.minimum(1.0, cases.pp - 1), "last": cases.pp - 1}
    return numbers[stage]


def _has_head(cases: Cases, stage: Stage) -> NDArray[np.bool_]:
    return np.asarray(_number(cases, stage) == cases.pp - 1, np.bool_)


def _shards(cases: Cases) -> Array:
    return cases.dp * cases.cp


def _gradients(cases: Cases, elements: Array) -> Array:
    """Summed gradients: whole, until ZeRO 2 slices them after a micro-batch or a step of one."""
    sliced = (cases.zero_stage >= 2) & ((cases.micro_batches == 1) | (cases.reduce_every_micro_batch > 0))
    return elements * cases.gradient_bytes / np.where(sliced, _shards(cases), 1.0)


def _scores(cases: Cases) -> Array:
    """Scores of attention: its softmax, and with dropout a mask of bytes and what it leaves."""
    scores = cases.heads * (cases.sequence / cases.cp) * cases.sequence * cases.micro_batch
    kept = np.where(cases.dropout > 0, 2 * cases.value_bytes + 1, cases.value_bytes)
    return np.where((cases.flash > 0) | (cases.recompute > NO_RECOMPUTE), 0.0, scores * kept)


def _logits(cases: Cases) -> Array:
    return cases.sequence / cases.cp * cases.micro_batch * cases.vocabulary / cases.tp


def _waiting(cases: Cases, layers: Array, flight: Array, constants: MemoryConstants) -> Array:
    """Gathered inputs that asynchronous collectives of sequence parallelism still hold.

    An allocator gives a buffer that another stream uses to nobody until the device has passed that use. Between the
    forwards of a pipeline's warm-up nothing makes the host wait; the two last ones before steady turns do.
    """
    ahead = np.where(cases.pp > 1, layers * np.maximum(flight - 2, 0.0), layers)
    ahead = np.minimum(ahead, constants.waiting_layers)
    gathered = hidden_values(cases) * cases.value_bytes * (1 - 1 / cases.tp)
    return np.where(cases.sequence_parallel > 0, constants.waiting_values * gathered * ahead, 0.0)
