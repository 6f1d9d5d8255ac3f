"""The parameters that one rank of a layout holds, and the buffers through which they and their gradients travel. Pure.

ZeRO stages as in arXiv 1910.02054, in the way that the engine applies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.config.compression import Settings, settings_of
from engine.config.formulas.learning import OPTIMIZERS
from engine.config.formulas.tied_parameters import sharing_of
from engine.config.layout import Layout, accumulation, layout_of
from engine.config.methods.compression_methods import COMPRESSION_METHODS
from engine.config.methods.outer_methods import OUTER_METHODS
from engine.config.presets import ModelShape, resolve
from engine.config.run_config import RunConfig
from engine.config.sections import TensorPart, Train
from engine.footprint.activations import FP32_BYTES, Part, sizes_of
from engine.footprint.side_factors import adapts, side_factors
from engine.schedules.actions import Plan
from engine.schedules.registry import SCHEDULES

MIB = 2**20


class Weight(NamedTuple):
    """A parameter as a rank holds it before ZeRO splits it, flattened to [rows, columns], and how many copies of it.

    One that ``is_stack`` has a matrix for each expert, one that is ``is_rank_local`` is no other rank's. Of those that
    are ``is_whole`` ZeRO 2 and 3 leave every rank a copy: in bf16 norms and the router, which stay fp32.
    """

    rows: int
    columns: int
    copies: int = 1
    is_expert: bool = False
    is_whole: bool = False
    is_stack: bool = False
    is_rank_local: bool = False

    @property
    def elements(self) -> int:
        """Of all of them."""
        return self.rows * self.columns * self.copies


@dataclass(frozen=True, slots=True)
class StageWeights:
    """One stage's parameters: each block's, and those outside of blocks. Layers that share parameters count once."""

    layers: int
    block: tuple[Weight, ...]
    root: tuple[Weight, ...]

    @property
    def weights(self) -> list[Weight]:
        """All of the stage."""
        return [weight._replace(copies=weight.copies * self.layers) for weight in self.block] + list(
            self.root
        )

    @property
    def elements(self) -> int:
        """Parameters of the stage on a rank, before ZeRO splits them."""
        return sum(weight.elements for weight in self.weights)


def parameters_by_stage(config: RunConfig, parts: Sequence[Part]) -> list[StageWeights]:
    """The parameters of a rank's stages, before ZeRO splits them; what stages share counts with the first of them."""
    shape, sharing = resolve(config.model), sharing_of(config.model)
    stages, counted, embedded = list[StageWeights](), set[int](), False
    for part in parts:
        layers = {sharing.first(layer) for layer in range(part.start, part.start + part.layers)} - counted
        embedding: list[TensorPart] = ["embedding"] * part.is_first
        ends: list[TensorPart] = embedding + ["head"] * part.is_last
        if sharing.tied is not None:
            ends, embedded = [] if embedded else ends[:1], embedded or bool(ends)
        root = [
            Weight(
                shape.vocabulary // tensor_ranks(config, end),
                shape.hidden // column_ranks(config, end),
                is_rank_local=column_ranks(config, end) > 1,
            )
            for end in ends
        ]
        root += [Weight(shape.hidden, 1, is_whole=_leaves_whole(config))] * part.is_last
        stages.append(StageWeights(len(layers), _block(config, shape), tuple(root)))
        counted |= layers
    return stages


def trained_parameters(config: RunConfig, parts: Sequence[Part]) -> list[StageWeights]:
    """Those of a rank's stages that learn: beside a frozen model other ones."""
    if not adapts(config):
        return parameters_by_stage(config, parts)
    factors = [side_factors(config, range(part.start, part.start + part.layers)) for part in parts]
    return [
        StageWeights(0, (), tuple(Weight(matrix.rows, matrix.columns) for matrix in matrices))
        for matrices in factors
    ]


def is_replicated(config: RunConfig, matrices: TensorPart) -> bool:
    """Whether every rank of tp has all of them."""
    return matrices in (config.parallel.tp_replicated or ())


def tensor_ranks(config: RunConfig, matrices: TensorPart) -> int:
    """Ranks that they are split over: those of tp, or one where each has all of them."""
    return 1 if is_replicated(config, matrices) else config.parallel.tp


def column_ranks(config: RunConfig, matrices: TensorPart) -> int:
    """Data ranks that the columns of a matrix are split over."""
    split = matrices == "embedding" and config.parallel.embedding == "columns"
    return layout_of(config).inner if split else 1


def sharded_elements(weights: StageWeights, layout: Layout) -> int:
    """Elements of a rank's slices under ZeRO 2 and 3: rows are dealt out evenly, the last ranks' may be padding."""
    return sum(
        -(-weight.rows // _sharers(weight, layout)) * weight.columns * weight.copies
        for weight in weights.weights
    )


def parameter_bytes(config: RunConfig, elements: int) -> int:
    """Of parameters as they are kept: fp32, or bf16 where that was asked for and nothing is sharded."""
    return elements * (2 if _is_narrow(config) else FP32_BYTES)


def optimizer_bytes(config: RunConfig, weights: StageWeights) -> int:
    """The optimizer's averages in fp32, and an fp32 copy of parameters that are bf16 or on another device."""
    has_copy, layout = _is_narrow(config) or offloads_optimizer(config), layout_of(config)
    updated = updated_elements(weights, layout)
    saved = muon_elements(weights) if config.train.optimizer == "muon" else 0
    return FP32_BYTES * ((averages(config.train) + has_copy) * updated - saved)


def averages(train: Train) -> int:
    """Of so many values an optimizer keeps track beside each parameter; Muon of one where it acts itself."""
    return OPTIMIZERS[train.optimizer].averages(train)


def muon_elements(weights: StageWeights) -> int:
    """What Muon updates: the matrices of blocks, experts apart. Rules keep them whole."""
    return weights.layers * sum(
        weight.elements for weight in weights.block if weight.columns > 1 and not weight.is_stack
    )


def offloads_optimizer(config: RunConfig) -> bool:
    """Whether the optimizer's state is in the host's memory."""
    return config.memory.offload in ("optimizer", "both")


def kept_elements(weights: StageWeights, layout: Layout) -> int:
    """Parameters that a rank holds from step to step."""
    return sharded_elements(weights, layout) if layout.zero_stage >= 2 else weights.elements


def buffer_bytes(config: RunConfig, stages: Sequence[StageWeights], place: int, chosen: Plan) -> int:
    """What communication needs beside: see the parts it is the sum of."""
    return (
        _parameter_buffers(config, stages)
        + _gradient_buffers(config, stages)
        + _messages(config, place, chosen)
        + _gathered_again(config)
        + outer_bytes(config, sum(updated_elements(stage, layout_of(config)) for stage in stages))
    )


def outer_bytes(config: RunConfig, elements: int) -> int:
    """Of a rank that updates so many elements: what is sent, what an outer step works on, and where a round began."""
    outer, layout = config.outer, layout_of(config)
    if outer.method == "none":
        return 0
    method, sharers = OUTER_METHODS[outer.method], layout.replicas if layout.zero_stage else 1
    whole, shared = method.whole_copies(outer.variant), method.step_copies
    return FP32_BYTES * (whole * elements + shared * -(-elements // sharers))


def _block(config: RunConfig, shape: ModelShape) -> tuple[Weight, ...]:
    heads, output = tensor_ranks(config, "query_key_value"), tensor_ranks(config, "attention_output")
    hidden, width, whole = shape.hidden, shape.ffn_hidden, _leaves_whole(config)
    attention = [
        Weight(hidden // heads, hidden),
        Weight(shape.kv_heads * shape.head_dim // heads, hidden, 2),
        Weight(hidden, hidden // output),
    ]
    norms = [Weight(hidden, 1, 2, is_whole=whole)]
    experts = config.model.experts
    if experts is None:
        up, down = width // tensor_ranks(config, "gate_up"), width // tensor_ranks(config, "down")
        return (*attention, *norms, Weight(up, hidden, 2), Weight(hidden, down))
    matrix = (config.model.expert_ffn_hidden or width) // config.parallel.tp * hidden
    stack = Weight(experts // config.parallel.ep, matrix, 3, is_expert=config.parallel.ep > 1, is_stack=True)
    return (*attention, *norms, Weight(experts, hidden, is_whole=whole), stack)


def _leaves_whole(config: RunConfig) -> bool:
    return config.precision == "bf16" and config.parallel.zero_stage >= 2


def _is_narrow(config: RunConfig) -> bool:
    return config.memory.parameters == "bf16" and config.parallel.zero_stage < 2


def _sharers(weight: Weight, layout: Layout) -> int:
    if weight.is_whole:
        return 1
    return layout.inner // layout.ep if weight.is_expert else layout.shard


def updated_elements(weights: StageWeights, layout: Layout) -> int:
    """Elements that a rank's optimizer updates: all, or under ZeRO 1 its slice of the buckets."""
    if layout.zero_stage != 1:
        return kept_elements(weights, layout)
    total = 0
    for weight in weights.weights:
        sharers = layout.inner // layout.ep if weight.is_expert else layout.inner
        total += -(-weight.elements // (1 if weight.is_rank_local else sharers))
    return total


def _parameter_buffers(config: RunConfig, stages: Sequence[StageWeights]) -> int:
    """ZeRO 3 gathers a block at a time beside what is outside of blocks, and the next block's message; a schedule that
    works chunk by chunk a whole stage; ZeRO 2 all stages. Then an fp32 message of a block's gradients. With
    ``overlap.prefetch`` there are as many blocks' messages under way, and as many more of gradients. What
    is gathered parameter by parameter is copied into a message.
    """
    if config.parallel.zero_stage < 2:
        return 0
    element = sizes_of(config).element
    blocks = [_gathered_elements(stage.block) for stage in stages]
    roots = [_gathered_elements(stage.root) for stage in stages]
    if config.parallel.zero_stage == 2:
        gathered = sum(_gathered_elements(stage.weights) for stage in stages)
    elif SCHEDULES[config.schedule.kind].chunk_by_chunk and accumulation(config) > 1:
        gathered = max(_gathered_elements(stage.weights) for stage in stages)
    else:
        gathered = max(map(sum, zip(blocks, roots, strict=True)))
    unit, ahead = max(*blocks, *roots), config.overlap.prefetch
    coarse = unit if config.compression.weights == "int8" else 0
    apart = 0 if config.overlap.fused_gathers else unit
    return (
        element * (gathered + (unit + apart) * max(1, ahead))
        + coarse * max(1, ahead)
        + FP32_BYTES * unit * (1 + ahead)
    )


def _gathered_elements(weights: Sequence[Weight]) -> int:
    return sum(weight.elements for weight in weights if not weight.is_whole)


def _gradient_buffers(config: RunConfig, stages: Sequence[StageWeights]) -> int:
    """What compression left out, and its messages; under ZeRO 1 a slice of a bucket; gradients that are delayed."""
    layout, settings = layout_of(config), settings_of(config.compression)
    elements = sum(stage.elements for stage in stages)
    if layout.inner == 1:
        return 0
    kept_bytes = FP32_BYTES * elements * (settings.error_feedback + (config.compression.plan != "none"))
    kept_bytes += FP32_BYTES * elements * config.overlap.delay
    if layout.zero_stage:
        coarse = round(2 * _sent_bytes(settings, layout.inner) * elements)
        return kept_bytes + coarse + (_slice_bytes(config, stages) if layout.zero_stage == 1 else 0)
    if settings.method == "none":
        keep = config.train.slice_keep
        return kept_bytes + (round(FP32_BYTES * elements * keep) if keep < 1 else 0)  # slices leave packed
    sides = sum(
        (weight.rows + weight.columns) * weight.copies
        for stage_weights in stages
        for weight in stage_weights.weights
        if weight.columns > 1
    )
    inputs = settings.wire_inputs(layout.inner, sides / elements)
    return kept_bytes + round(COMPRESSION_METHODS[settings.method].message_bytes(inputs) * elements)


def _slice_bytes(config: RunConfig, stages: Sequence[StageWeights]) -> int:
    biggest = max(weight.rows * weight.columns for stage in stages for weight in stage.weights)
    return round(max(config.overlap.bucket_mb * MIB, FP32_BYTES * biggest)) // layout_of(config).inner


def _sent_bytes(settings: Settings, ranks: int) -> float:
    """Of one value on its way to the rank that needs it."""
    if settings.method == "none":
        return 0
    return COMPRESSION_METHODS[settings.method].wire_bytes(settings.wire_inputs(ranks))


def _gathered_again(config: RunConfig) -> int:
    """One whole activation in a backward that kept a slice of it."""
    sizes = sizes_of(config)
    gathers = {"query_key_value", "gate_up", "head"} - sizes.replicated
    return sizes.element * sizes.hidden if config.parallel.tp_regather and gathers else 0


def _messages(config: RunConfig, place: int, chosen: Plan) -> int:
    """One message under way from each neighbour in the pipeline."""
    near = {
        chosen.rank_of[other]
        for stage in chosen.stages_of(place)
        for other in (stage - 1, stage + 1)
        if 0 <= other < chosen.stages
    }
    sizes = sizes_of(config)
    return len(near - {place}) * sizes.element * sizes.slice
