"""Bytes of activations that a micro-batch leaves for its backward, by formula. Pure.

The rule is that of arXiv 2205.05198, section 4: every tensor that backward needs counts once. There it is applied to a
GPT, here to each operation of our decoder as torch's kernels for the CPU keep it; attention is fused, so scores are
never kept. Numbers of a few bytes a layer (statistics of the routing, random states) are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.config.formulas.expert_rows import is_bucketed, rows_sent
from engine.config.layout import layout_of
from engine.config.presets import ModelShape, resolve
from engine.config.run_config import RunConfig
from engine.config.sections import BlockAction
from engine.footprint.block_plan import LEAVING, Cost, StageOverhead, evaluate
from engine.schedules.registry import SCHEDULES

FP32_BYTES, INDEX_BYTES = 4, 8
#: Place and weight of a sampled row.
_OF_SAMPLE = INDEX_BYTES, FP32_BYTES
#: Norms of gradients that products of one input remember, by the token that follows; tokens that fall together share
#: one. Every byte has its own.
SLOTS = 256
#: Smaller tensors stay on the device where others leave: each copy has a price of its own.
SMALLEST_BYTES = 4096

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True)
class Part:
    """A stage's part of the model: how many layers, and whether it embeds or gives logits.

    ``turns_at_once``: each of its forwards is followed by its own backward at once. ``start`` is its first layer's
    number in the model.
    """

    layers: int
    is_first: bool
    is_last: bool
    turns_at_once: bool = False
    start: int = 0


@dataclass(frozen=True, slots=True)
class ActivationBytes:
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

    ``tokens`` is sequence / cp x batch; where tp splits the sequence a rank holds tokens / tp of them. Matrices that
    are ``replicated`` over tp are multiplied with those alone. ``mask`` is of documents: each token with each of its
    sequence.
    """

    shape: ModelShape
    tokens: int
    tp: int
    element: int
    replicated: frozenset[str] = frozenset()
    keep: float = 1.0
    mask: int = 0

    def activation_elements(self, matrices: str) -> int:
        """Elements that matrices read of an activation, or give to one: all of it, or a slice if replicated."""
        return self.slice if matrices in self.replicated else self.hidden

    @property
    def hidden(self) -> int:
        """Elements of a whole activation."""
        return self.tokens * self.shape.hidden

    @property
    def slice(self) -> int:
        """Elements of an activation between blocks."""
        return self.hidden // self.tp

    @property
    def query(self) -> int:
        """Elements of this rank's queries that are trained, and of what they read."""
        return self.slice if self.keep == 1 else self.key_value * (self.shape.heads // self.shape.kv_heads)

    @property
    def key_value(self) -> int:
        """Elements of this rank's keys that are trained; its values are as many."""
        return self.tokens * count_kept_parts(self.shape.kv_heads // self.tp, self.keep) * self.shape.head_dim

    @property
    def width(self) -> int:
        """Elements of this rank's width of a feed-forward that are trained."""
        return self.tokens * count_kept_parts(self.shape.ffn_hidden // self.tp, self.keep)

    @property
    def sums(self) -> int:
        """Sums of attention: one for each token and head that is trained."""
        return self.query // self.shape.head_dim

    @property
    def scores(self) -> int:
        """What is added to scores of attention where documents are masked; a kernel that is given key heads one by one
        has it for each.
        """
        folded = self.element < FP32_BYTES and self.shape.heads != self.shape.kv_heads
        return self.mask * (count_kept_parts(self.shape.kv_heads // self.tp, self.keep) if folded else 1)

    @property
    def is_one_head(self) -> bool:
        """Whether a slice of one head is trained: what attention gives then lies as the next matrix reads it."""
        return self.keep < 1 and self.sums == self.tokens


def sizes_of(config: RunConfig) -> Sizes:
    """The sizes that a configuration gives every rank."""
    tokens = config.batch.micro_batch * config.data.sequence_length // config.parallel.cp
    element = 2 if config.precision == "bf16" else FP32_BYTES
    replicated = frozenset(config.parallel.tp_replicated or ())
    mask = tokens * config.data.sequence_length if config.data.documents == "masked" else 0
    return Sizes(
        resolve(config.model), tokens, config.parallel.tp, element, replicated, config.train.slice_keep, mask
    )


def stage_activations(config: RunConfig, part: Part) -> ActivationBytes:
    """What one micro-batch leaves in a stage, with the stage's input and output."""
    sizes, memory = sizes_of(config), config.memory
    if memory.block_actions is not None:
        return _kept_by_actions(config, part, memory.block_actions[part.start : part.start + part.layers])
    offloads = memory.offload in ("activations", "both")
    first, rest_one = block_bytes(config, memory.recompute), block_bytes(config, "none")
    few = min(memory.recompute_layers or part.layers, part.layers)
    remaining = part.layers - few
    blocks = few * first + remaining * rest_one
    stays = int(offloads and part.turns_at_once)  # the last block, which has no time to leave
    offloaded, stay_bytes = part.layers - stays, stays * (rest_one if remaining else first)
    copied = (offloads and offloaded > 0) or (sizes.element < FP32_BYTES and memory.recompute != "full")
    mask = sizes.mask if memory.recompute != "none" else 0
    outside = boundary_bytes(config, part, copied) + mask + (head_bytes(config) if part.is_last else 0)
    back = min(2 - stays, offloaded) * (rest_one if remaining > stays else first) if offloads else 0
    return ActivationBytes(
        device=outside + (stay_bytes if offloads else blocks),
        host=blocks - stay_bytes if offloads else 0,
        waiting=waiting_bytes(config, part),
        returning=_computed_again(config) + back,
    )


def boundary_bytes(config: RunConfig, part: Part, copied: bool) -> int:
    """Of one micro-batch beside a stage's blocks and head: tokens or what another stage gave, and what goes on.
    ``copied`` tells whether what the first block keeps of its input is a copy.
    """
    sizes = sizes_of(config)
    boundary = sizes.element * sizes.slice
    outside = 0 if part.is_last else boundary
    if part.is_first:
        return outside + _index_bytes(sizes, "embedding", INDEX_BYTES + 1)
    return outside + (boundary if copied else 0)


def head_bytes(config: RunConfig) -> int:
    """What logits and loss keep of one micro-batch."""
    return _head(config, sizes_of(config))


def costs_of_block(config: RunConfig) -> dict[BlockAction, Cost]:
    """Bytes of each action of a block, which are all alike; seconds are 0."""
    whole, narrow = block_bytes(config, "none"), block_bytes(config, "full")
    selective = block_bytes(config, "selective")
    recomputing_config = config.with_values({"memory.recompute": "full", "memory.block_actions": None})
    stays = _too_small(config)
    # The first norm keeps an fp32 copy of its input, beside the input that the block is computed again from.
    both = narrow if sizes_of(config).element < FP32_BYTES else 0
    away = Cost(stays, whole, whole, 0.0, 0.0, away=whole - stays)
    return {
        "keep": Cost(whole, whole, whole, 0.0, 0.0),
        "selective": Cost(selective, selective, max(whole, selective), 0.0, 0.0),
        "full": Cost(narrow, narrow, narrow + both + _computed_again(recomputing_config), 0.0, 0.0),
        **dict.fromkeys(LEAVING, away),
    }


def _too_small(config: RunConfig) -> int:
    """What of a block does not leave: factors of norms, sums of attention, places and weights of sampled rows, and all
    else where there are few tokens.
    """
    sizes = sizes_of(config)
    factor, slices = FP32_BYTES * sizes.tokens // sizes.tp, FP32_BYTES * sizes.slice
    read = [
        sizes.element * sizes.activation_elements(matrices) for matrices in ("query_key_value", "gate_up")
    ]
    queries = [sizes.element * sizes.query] * _query_like(config, sizes)
    wide = [] if config.model.experts else [sizes.element * sizes.width] * 4
    keys = [sizes.element * sizes.key_value] * 2
    saved = [factor, factor, *[slices] * 4, *read, *queries, *keys, FP32_BYTES * sizes.sums, *wide]
    saved += [sizes.element * sizes.scores]
    saved += [size * rows for _, rows, _, _ in _sampled_inputs(config, sizes, "none") for size in _OF_SAMPLE]
    return sum(size for size in saved if size < SMALLEST_BYTES)


def _kept_by_actions(config: RunConfig, part: Part, actions: Sequence[BlockAction]) -> ActivationBytes:
    """Of a stage whose blocks have an action each."""
    sizes, block = sizes_of(config), costs_of_block(config)
    costs = [block[action] for action in actions]
    copied = actions[0] in LEAVING or (sizes.element < FP32_BYTES and actions[0] != "full")
    mask = sizes.mask if {"selective", "full"}.intersection(actions) else 0
    outside = boundary_bytes(config, part, copied) + mask + (head_bytes(config) if part.is_last else 0)
    blocks = sum(cost.resident for cost in costs)
    peak = evaluate([block] * len(costs), actions, StageOverhead()).peak_bytes
    return ActivationBytes(
        device=outside + blocks,
        host=sum(block[action].away for action in actions if action == "offload"),
        waiting=waiting_bytes(config, part),
        returning=peak - blocks,
    )


def block_bytes(config: RunConfig, recompute: Recompute) -> int:
    """Kept of one micro-batch by one block: all that its backward needs, or what it computes that again from."""
    sizes = sizes_of(config)
    if recompute == "full":
        return sizes.element * sizes.slice
    second_half = _mixture(config, sizes) if config.model.experts else _feed_forward(sizes)
    attention = _core_inputs(config, sizes) if recompute == "selective" else _attention(config, sizes)
    second_half -= _saved_bytes(config, sizes, recompute)
    # A router reads the whole norm's output, and the experts rows of it.
    whole = (sizes.hidden - sizes.slice) if config.model.experts and config.parallel.tp_regather else 0
    norms = _norm(config, sizes, "query_key_value") + _norm(config, sizes, "gate_up")
    return norms + sizes.element * whole + attention + second_half


def count_sampled_rows(tokens: int, share: float) -> int:
    """Tokens of a matrix's input that are kept with ``memory.sample_tokens``."""
    return max(1, math.ceil(round(share * tokens, 9)))


def count_kept_parts(parts: int, keep: float) -> int:
    """Heads, or units of width, that a step trains with ``train.slice_keep``; rules see to it that they are whole."""
    return max(1, round(keep * parts))


def remembered_bytes(config: RunConfig, part: Part) -> int:
    """Norms of gradients that a stage with ``memory.sample_tokens`` keeps from step to step."""
    return FP32_BYTES * SLOTS * len(_sampled_by_stage(config, part))


def spared_flops(config: RunConfig, part: Part) -> int:
    """Of a micro-batch's weight gradients in a stage of one rank, for the tokens that ``memory.sample_tokens`` leaves
    out.
    """
    sampled = _sampled_by_stage(config, part)
    return sum(2 * (rows - kept_rows) * read * width_out for rows, kept_rows, read, width_out in sampled)


def _sampled_by_stage(config: RunConfig, part: Part) -> list[tuple[int, int, int, int]]:
    sizes = sizes_of(config)
    return [sample for kind in _recomputed(config, part) for sample in _sampled_inputs(config, sizes, kind)]


def _recomputed(config: RunConfig, part: Part) -> list[Recompute]:
    """What each of a stage's blocks computes again."""
    memory = config.memory
    if memory.block_actions is None:
        few = min(memory.recompute_layers or part.layers, part.layers)
        return [memory.recompute] * few + ["none"] * (part.layers - few)
    actions = memory.block_actions[part.start : part.start + part.layers]
    return [action if action in ("selective", "full") else "none" for action in actions]


def _sampled_inputs(config: RunConfig, sizes: Sizes, recompute: Recompute) -> list[tuple[int, int, int, int]]:
    """Of each input of a block's matrices that is kept in part: a rank's rows, those kept, the width that is read of
    them, and that of the products.
    """
    share, shape = config.memory.sample_tokens, sizes.shape
    if share == 1 or recompute == "full":
        return []
    widths = {"query_key_value": (shape.hidden, shape.hidden + 2 * shape.kv_heads * shape.head_dim)}
    if config.parallel.cp == 1 and recompute == "none":
        widths["attention_output"] = (shape.hidden, shape.hidden)
    if not config.model.experts:
        widths |= {"gate_up": (shape.hidden, 2 * shape.ffn_hidden), "down": (shape.ffn_hidden, shape.hidden)}
    sampled = []
    for name, (read, width_out) in widths.items():
        rows, split = (sizes.tokens // sizes.tp, 1) if name in sizes.replicated else (sizes.tokens, sizes.tp)
        has_columns = name in ("query_key_value", "gate_up")
        widths_here = (read, width_out // split) if has_columns else (read // split, width_out)
        if (kept_rows := count_sampled_rows(rows, share)) < rows:
            sampled.append((rows, kept_rows, *widths_here))
    return sampled


def _saved_bytes(config: RunConfig, sizes: Sizes, recompute: Recompute) -> int:
    """Bytes of rows that a block does not keep; of each that it does, its place and weight are kept."""
    return sum(
        sizes.element * (rows - kept_rows) * read - sum(_OF_SAMPLE) * kept_rows
        for rows, kept_rows, read, _ in _sampled_inputs(config, sizes, recompute)
    )


def waiting_bytes(config: RunConfig, part: Part) -> int:
    """Kept of one micro-batch between the two parts of a split backward: factors of the matrices' gradients.

    A matrix needs its input and its output's gradient; matrices that share an input share it here too.
    """
    sizes = sizes_of(config)
    width = sizes.tokens * sizes.shape.ffn_hidden // sizes.tp
    block = _attention_factors(sizes)
    if not config.model.experts:
        block += sizes.activation_elements("gate_up") + sizes.activation_elements("down") + 3 * width
    head = (
        sizes.activation_elements("head") + sizes.tokens * sizes.shape.vocabulary // sizes.tp
        if part.is_last
        else 0
    )
    for rows, kept_rows, read, width_out in _sampled_inputs(config, sizes, config.memory.recompute):
        block -= (rows - kept_rows) * (read + width_out)
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


def _computed_again(config: RunConfig) -> int:
    """What a block that forgets has for a while in backward; one that forgets all gathers once and keeps it."""
    recompute = config.memory.recompute
    plain = config.with_values({"parallel.tp_regather": False}) if recompute == "full" else config
    return block_bytes(plain, "none") - block_bytes(plain, recompute)


def _norm(config: RunConfig, sizes: Sizes, reader: str) -> int:
    """Its input and normalized values in fp32, a factor a token, and its output for the matrices that read it:
    whole, or this rank's slice. A weight that is not fp32 itself is kept as an fp32 copy.
    """
    is_narrow = config.memory.parameters == "bf16" and config.parallel.zero_stage < 2
    saved = 2 * FP32_BYTES * sizes.slice + FP32_BYTES * sizes.tokens // sizes.tp
    output = sizes.slice if config.parallel.tp_regather else sizes.activation_elements(reader)
    return saved + sizes.element * output + (FP32_BYTES * sizes.shape.hidden if is_narrow else 0)


def _attention(config: RunConfig, sizes: Sizes) -> int:
    """Rotated queries and keys, values, the mask of documents as it is added to scores, the result, its log-sum-exp in
    fp32, and the result as its matrix reads it.
    """
    elements = _query_like(config, sizes) * sizes.query + 2 * sizes.key_value + sizes.scores
    return sizes.element * elements + FP32_BYTES * sizes.sums


def _query_like(config: RunConfig, sizes: Sizes) -> int:
    """Tensors as large as the queries; a ring keeps the result as its matrix reads it, alone."""
    is_ring = config.parallel.cp > 1 and config.parallel.cp_method == "ring"
    return 2 if is_ring or sizes.is_one_head else 3


def _core_inputs(config: RunConfig, sizes: Sizes) -> int:
    """Queries, keys and values; with a split backward the result for its matrix, too."""
    results = 2 if SCHEDULES[config.schedule.kind].splits_backward else 1
    return sizes.element * (results * sizes.query + 2 * sizes.key_value)


def _attention_factors(sizes: Sizes) -> int:
    """Inputs: whole for query, key and value, split for output. Gradients: split for those, whole for output."""
    outer = sizes.activation_elements("query_key_value") + sizes.activation_elements("attention_output")
    return outer + 2 * sizes.slice + 2 * sizes.key_value


def _feed_forward(sizes: Sizes) -> int:
    """Gate, its activation, up, and the product of the two."""
    return 4 * sizes.element * sizes.width


def _mixture(config: RunConfig, sizes: Sizes) -> int:
    """The router's numbers, and for each row at an expert its input, four tensors of its width, and its result; of rows
    that travel as one, the results of all as well, and to which bucket each belongs.
    """
    model = config.model
    experts, chosen = model.experts or 1, sizes.tokens * model.experts_per_token
    rows = chosen
    if model.capacity_factor is not None:
        slots = math.ceil(round(model.capacity_factor * chosen / experts, 9))
        rows = experts * min(slots, sizes.tokens)
    width = (model.expert_ffn_hidden or sizes.shape.ffn_hidden) // sizes.tp
    sent = rows_sent(config, rows)
    computed = sizes.element * sent * (2 * sizes.shape.hidden + 4 * width)
    if is_bucketed(config):
        computed += sizes.element * (rows - sent) * sizes.shape.hidden + INDEX_BYTES * (2 * rows + sent)
    copy = (FP32_BYTES - sizes.element) * sizes.hidden  # the router reads the norm's output in fp32
    router = FP32_BYTES * (sizes.tokens * (experts + 1) + 2 * chosen) + INDEX_BYTES * chosen
    orders = 2 if layout_of(config).ep > 1 and rows == chosen else 0
    return computed + copy + router + INDEX_BYTES * (chosen + rows + orders * sent)


def _head(config: RunConfig, sizes: Sizes) -> int:
    """The last norm, probabilities in fp32, and the targets."""
    logits = sizes.tokens * sizes.shape.vocabulary // sizes.tp
    return _norm(config, sizes, "head") + FP32_BYTES * logits + _index_bytes(sizes, "head", 1)


def _index_bytes(sizes: Sizes, matrix: str, extra_bytes: int) -> int:
    """Tokens or targets that a matrix of words keeps; ``extra_bytes`` a token where tp splits the words."""
    if matrix in sizes.replicated:
        return INDEX_BYTES * sizes.tokens // sizes.tp
    return sizes.tokens * (INDEX_BYTES + (extra_bytes if sizes.tp > 1 else 0))
