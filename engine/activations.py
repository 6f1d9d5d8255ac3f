"""Bytes of activations that a micro-batch leaves for its backward, by formula. Pure.

The rule is that of arXiv 2205.05198, section 4: every tensor that backward needs counts once. There it is applied to a
GPT, here to each operation of our decoder as torch's kernels for the CPU keep it; attention is fused, so scores are
never kept. Numbers of a few bytes a layer (statistics of the routing, random states) are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from engine.config import RunConfig
from engine.layout import layout_of
from engine.presets import ModelShape, resolve
from engine.schedules.named import KINDS

FP32_BYTES, INDEX_BYTES = 4, 8

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True)
class Part:
    """A stage's part of the model: how many layers, and whether it embeds or gives logits."""

    layers: int
    is_first: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """What one micro-batch leaves in a stage, in bytes.

    ``device`` and ``host`` stay from a forward to the end of its backward, ``waiting`` between the two parts of a split
    one. ``returning`` comes on top while one backward runs: activations that are computed again, or come back from
    the host for a block and the one behind it.
    """

    device: int
    host: int = 0
    waiting: int = 0
    returning: int = 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a rank sees of one micro-batch, in elements; ``element`` is the bytes of an activation.

    ``tokens`` is sequence / cp x batch; where tp splits the sequence a rank holds tokens / tp of them.
    """

    shape: ModelShape
    tokens: int
    tp: int
    element: int

    @property
    def hidden(self) -> int:
        """Elements of a whole activation."""
        return self.tokens * self.shape.hidden

    @property
    def slice(self) -> int:
        """Elements of an activation between blocks."""
        return self.hidden // self.tp

    @property
    def key_value(self) -> int:
        """Elements of this rank's keys; its values are as many."""
        return self.tokens * self.shape.kv_heads * self.shape.head_dim // self.tp


def sizes_of(config: RunConfig) -> Sizes:
    """The sizes that a configuration gives every rank."""
    tokens = config.batch.micro_batch * config.data.sequence_length // config.parallel.cp
    element = 2 if config.precision == "bf16" else FP32_BYTES
    return Sizes(resolve(config.model), tokens, config.parallel.tp, element)


def kept_by_stage(config: RunConfig, part: Part) -> Kept:
    """What one micro-batch leaves in a stage, with the stage's input and output."""
    sizes, memory = sizes_of(config), config.memory
    boundary, offloads = sizes.element * sizes.slice, memory.offload in ("activations", "both")
    first = block_bytes(config, memory.recompute)
    whole = block_bytes(config, "none")
    few = min(memory.recompute_layers or part.layers, part.layers)
    rest = part.layers - few
    blocks = few * first + rest * whole
    copied = few * copied_bytes(config, memory.recompute) + rest * copied_bytes(config, "none")
    outside = _head(config, sizes) if part.is_last else boundary
    if part.is_first:
        outside += sizes.tokens * (INDEX_BYTES + (INDEX_BYTES + 1 if sizes.tp > 1 else 0))
    elif offloads or (sizes.element < FP32_BYTES and memory.recompute != "full"):
        outside += boundary  # what the first block keeps of it is a copy
    back = min(2, part.layers) * (whole if rest else first) if offloads else 0
    return Kept(
        device=outside + (copied if offloads else blocks),
        host=blocks - copied if offloads else 0,
        waiting=waiting_bytes(config, part),
        returning=whole - first + back,
    )


def block_bytes(config: RunConfig, recompute: Recompute) -> int:
    """Kept of one micro-batch by one block: all that its backward needs, or what it computes that again from."""
    sizes = sizes_of(config)
    if recompute == "full":
        return sizes.element * sizes.slice
    rest = _mixture(config, sizes) if config.model.experts else _feed_forward(sizes)
    attention = _core_inputs(config, sizes) if recompute == "selective" else _attention(sizes)
    return 2 * _norm(config, sizes) + attention + rest + copied_bytes(config, recompute)


def waiting_bytes(config: RunConfig, part: Part) -> int:
    """Kept of one micro-batch between the two parts of a split backward: factors of the matrices' gradients.

    A matrix needs its input and its output's gradient; matrices that share an input share it here too.
    """
    sizes = sizes_of(config)
    width = sizes.tokens * sizes.shape.ffn_hidden // sizes.tp
    block = _attention_factors(sizes)
    if not config.model.experts:
        block += 2 * sizes.hidden + 3 * width
    head = sizes.hidden + sizes.tokens * sizes.shape.vocabulary // sizes.tp if part.is_last else 0
    return sizes.element * (part.layers * block + head)


def published_bytes(config: RunConfig, layers: int) -> int | None:
    """One micro-batch's activations in the layers of a GPT by arXiv 2205.05198, table 2; None where it does not apply.

    With tensor and sequence parallelism 34 s b h / t bytes a layer: 11 s b h of attention, 19 of a feed-forward of 4 h,
    4 of two norms; without the term 5 a s / h of the attention core, which fused attention does not keep either. With
    full recomputation 2 s b h. Embedding and logits are left out, and 16 bits an element are assumed.
    """
    if config.precision != "bf16" or config.model.experts or config.memory.recompute_layers:
        return None
    sizes = sizes_of(config)
    return layers * (2 * sizes.hidden if config.memory.recompute == "full" else 34 * sizes.slice)


def copied_bytes(config: RunConfig, recompute: Recompute) -> int:
    """bf16 copies of fp32 matrices in one block, which autograd keeps for each micro-batch anew.

    With a split backward those of experts alone.
    """
    if not _copies_matrices(config) or recompute == "full":
        return 0
    shape, model = resolve(config.model), config.model
    width = model.expert_ffn_hidden or shape.ffn_hidden
    experts = 3 * shape.hidden * width * (model.experts or 0) // config.parallel.ep
    dense = 2 * shape.hidden * (shape.hidden + shape.kv_heads * shape.head_dim)
    dense += 0 if model.experts else 3 * shape.hidden * shape.ffn_hidden
    dense -= shape.hidden * shape.hidden if recompute == "selective" else 0
    splits = KINDS[config.schedule.kind].splits_backward
    return 2 * (experts + (0 if splits else dense)) // config.parallel.tp


def _copies_matrices(config: RunConfig) -> bool:
    """Products of bf16 with fp32 matrices make copies; FSDP2 gathers in bf16."""
    return (
        config.precision == "bf16" and config.parallel.zero_stage < 2 and config.memory.parameters == "fp32"
    )


def _norm(config: RunConfig, sizes: Sizes) -> int:
    """Its input and normalized values in fp32, a factor a token, and its whole output for the matrices behind it.

    A weight that is not fp32 itself is kept as an fp32 copy.
    """
    copy = 0 if config.precision == "fp32" or _copies_matrices(config) else FP32_BYTES * sizes.shape.hidden
    kept = 2 * FP32_BYTES * sizes.slice + FP32_BYTES * sizes.tokens // sizes.tp
    return kept + sizes.element * sizes.hidden + copy


def _attention(sizes: Sizes) -> int:
    """Rotated queries and keys, values, the result, its log-sum-exp in fp32, and the result as its matrix reads it."""
    elements = 3 * sizes.slice + 2 * sizes.key_value
    return sizes.element * elements + FP32_BYTES * sizes.tokens * sizes.shape.heads // sizes.tp


def _core_inputs(config: RunConfig, sizes: Sizes) -> int:
    """Queries, keys and values; with a split backward the result for its matrix, too."""
    results = 2 if KINDS[config.schedule.kind].splits_backward else 1
    return sizes.element * (results * sizes.slice + 2 * sizes.key_value)


def _attention_factors(sizes: Sizes) -> int:
    """Inputs: whole for query, key and value, split for output. Gradients: split for those, whole for output."""
    return 2 * sizes.hidden + 2 * sizes.slice + 2 * sizes.key_value


def _feed_forward(sizes: Sizes) -> int:
    """Gate, its activation, up, and the product of the two."""
    return 4 * sizes.element * sizes.tokens * sizes.shape.ffn_hidden // sizes.tp


def _mixture(config: RunConfig, sizes: Sizes) -> int:
    """The router's numbers, and for each row at an expert its input, four tensors of its width, and its result."""
    model = config.model
    experts, chosen = model.experts or 1, sizes.tokens * model.experts_per_token
    rows = chosen
    if model.capacity_factor is not None:
        slots = math.ceil(round(model.capacity_factor * chosen / experts, 9))
        rows = experts * min(slots, sizes.tokens)
    width = (model.expert_ffn_hidden or sizes.shape.ffn_hidden) // sizes.tp
    computed = sizes.element * rows * (2 * sizes.shape.hidden + 4 * width)
    copy = (FP32_BYTES - sizes.element) * sizes.hidden  # the router reads the norm's output in fp32
    router = FP32_BYTES * (sizes.tokens * (experts + 1) + 2 * chosen) + INDEX_BYTES * chosen
    orders = 2 if layout_of(config).ep > 1 and rows == chosen else 0
    return computed + copy + router + INDEX_BYTES * (chosen + rows + orders * rows)


def _head(config: RunConfig, sizes: Sizes) -> int:
    """The last norm, probabilities in fp32, the targets, and a copy of the matrix as in blocks."""
    logits = sizes.tokens * sizes.shape.vocabulary // sizes.tp
    targets = sizes.tokens * (INDEX_BYTES + (1 if sizes.tp > 1 else 0))
    copied = _copies_matrices(config) and not KINDS[config.schedule.kind].splits_backward
    matrix = 2 * sizes.shape.vocabulary * sizes.shape.hidden // sizes.tp if copied else 0
    return _norm(config, sizes) + FP32_BYTES * logits + targets + matrix
