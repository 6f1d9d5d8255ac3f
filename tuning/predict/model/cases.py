"""Many configurations at a time, as one array for each quantity: what the closed forms work on. Pure.

``cases_of`` says what our engine computes, keeps and sends of configurations of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.config.compression import settings_of
from engine.config.formulas.tied_parameters import sharing_of
from engine.config.layout import accumulation, layers_of_stages
from engine.config.methods.compression_methods import COMPRESSION_METHODS
from engine.config.methods.outer_methods import OUTER_METHODS
from engine.config.presets import ModelShape, resolve
from engine.config.run_config import RunConfig
from engine.config.sections import BlockAction, TensorPart
from engine.footprint.weights import averages
from engine.schedules.actions import Costs
from engine.schedules.closed_forms import idle_seconds
from engine.schedules.registry import SCHEDULES, rank_of_stages

Array: TypeAlias = NDArray[np.float64]

NO_RECOMPUTE, SELECTIVE, FULL = 0, 1, 2
#: What a column is where nothing is said.
_USUAL: Mapping[str, float] = {
    "mlp_matrices": 2,
    "dp": 1,
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "chunks": 1,
    "zero_stage": 0,
    "recompute": NO_RECOMPUTE,
    "sequence_parallel": 0,
    "flash": 0,
    "dropout": 0,
    "tied": 1,
    "positions": 0,
    "weight_bytes": 2,
    "gradient_bytes": 4,
    "optimizer_bytes": 12,
    "reduce_bytes": 4,
    "reduce_every_micro_batch": 0,
    "bucketed": 1,
    "scattered_boundary": 0,
    "tensor_beside": 0,
    "gathers": 1,
    "value_bytes": 2,
    "devices_per_node": 8,
    "bubble_scale": 1,
    "ulysses": 0,
    "period": 1,
    "late": 0,
    "last_layers": 0,
    "other_layers": 0,
    "whole_block": 0,
    "whole_matrix": 0,
    "whole_embedding": 0,
    "whole_head": 0,
    "norm_outputs": 2,
    "tensor_share": 1,
    "sharing_layers": 1,
    "gathers_once": 0,
    "sums_ends": 0,
}


@dataclass(frozen=True, slots=True)
class Cases:
    """Columns of equal length, a row for each configuration.

    Sizes of a decoder: ``ffn_hidden`` of ``mlp_matrices`` matrices (2, or 3 with a gate), ``sequence`` in tokens,
    ``tied`` input and output embeddings, learned ``positions`` (their number). Degrees of parallelism;
    ``micro_batch`` in sequences and ``micro_batches`` a step and replica; ``chunks`` a pipeline rank.
    ``recompute`` is 0 (nothing), 1 (the attention core) or 2 (whole blocks).

    ``weight_bytes``, ``gradient_bytes``, ``optimizer_bytes`` (with fp32 weights, if there are some) and
    ``reduce_bytes`` are of one parameter, ``value_bytes`` of one value between blocks. ``bucketed`` gradients leave
    beside backward. ``scattered_boundary``: each tp rank sends its slice to the next stage.
    ``tensor_beside``: tp's messages leave beside products. ``gathers``: calls that
    gather a block's parameters, one or one for each tensor. ``last_layers`` are those of the last pipeline rank, which
    has the head, and ``other_layers`` the most of any other; 0 deals them evenly.
    ``bubble_scale``: a schedule's bubble in times of 1F1B's or interleaved 1F1B's. cp is a ring, or ``ulysses``.
    ``sharing_layers`` in a row have the same parameters. With ``gathers_once`` ZeRO 3 gathers for all
    micro-batches of a pass through a chunk together, not for each. With ``sums_ends`` the gradient of tied embeddings
    is summed over both ends of a pipeline; of published tables that is left to the constants fitted to them.
    Replicas that train by themselves meet every ``period`` steps, and with ``late`` beside the steps that follow.

    Of matrices that every tp rank has: ``whole_block`` are their elements in a block, ``whole_matrix`` those of the
    largest, ``whole_embedding`` and ``whole_head`` are 1 or 0. ``norm_outputs``: whole activations that a block's two
    norms leave for their readers. ``tensor_share``: of what tp sends for a block, in times of what it does with all
    matrices split.
    """

    layers: Array
    hidden: Array
    heads: Array
    kv_heads: Array
    ffn_hidden: Array
    vocabulary: Array
    sequence: Array
    micro_batch: Array
    micro_batches: Array
    mlp_matrices: Array
    dp: Array
    tp: Array
    pp: Array
    cp: Array
    chunks: Array
    zero_stage: Array
    recompute: Array
    sequence_parallel: Array
    flash: Array
    dropout: Array
    tied: Array
    positions: Array
    weight_bytes: Array
    gradient_bytes: Array
    optimizer_bytes: Array
    reduce_bytes: Array
    reduce_every_micro_batch: Array
    bucketed: Array
    scattered_boundary: Array
    tensor_beside: Array
    gathers: Array
    value_bytes: Array
    devices_per_node: Array
    bubble_scale: Array
    ulysses: Array
    period: Array
    late: Array
    last_layers: Array
    other_layers: Array
    whole_block: Array
    whole_matrix: Array
    whole_embedding: Array
    whole_head: Array
    norm_outputs: Array
    tensor_share: Array
    sharing_layers: Array
    gathers_once: Array
    sums_ends: Array

    @classmethod
    def from_columns(cls, **columns: object) -> Cases:
        """From columns or single values; what is not given is usual (a GPT's block, degrees of 1, mixed precision).

        Raises:
            TypeError: a column that has no usual value is missing, or one is unknown.
        """
        values: dict[str, object] = {**_USUAL, **columns}
        values.setdefault("kv_heads", values.get("heads"))
        values.setdefault("ffn_hidden", 4 * np.asarray(values.get("hidden"), dtype=np.float64))
        names = [field.name for field in fields(cls)]
        unknown, missing = set(values) - set(names), [name for name in names if values.get(name) is None]
        if unknown or missing:
            raise TypeError(f"unknown columns: {sorted(unknown)}; missing: {missing}")
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(values[name], np.float64)) for name in names))
        return cls(**{name: np.ascontiguousarray(array) for name, array in zip(names, arrays, strict=True)})

    @classmethod
    def join(cls, parts: Sequence[Cases]) -> Cases:
        """One after the other."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    def __len__(self) -> int:
        return len(self.layers)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Cases:
        """Some of the rows, by mask or number."""
        return Cases(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def rows(self) -> list[tuple[float, ...]]:
        """Each configuration as a tuple of its values."""
        table = np.stack([getattr(self, field.name) for field in fields(self)], axis=1)
        return [tuple(row) for row in table.tolist()]

    def put(self, **columns: Array) -> Cases:
        """The same with other columns."""
        return replace(self, **columns)

    @property
    def world(self) -> Array:
        """Ranks in all."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch(self) -> Array:
        """Sequences a step."""
        return self.micro_batch * self.micro_batches * self.dp

    @property
    def tokens(self) -> Array:
        """Tokens a step."""
        return self.global_batch * self.sequence

    @property
    def head_dim(self) -> Array:
        """Values of a head."""
        return self.hidden / self.heads

    @property
    def block_parameters(self) -> Array:
        """Of one block: attention, feed-forward and norms (biases left out)."""
        attention = 2 * self.hidden**2 + 2 * self.hidden * self.kv_heads * self.head_dim
        return attention + self.mlp_matrices * self.hidden * self.ffn_hidden + 2 * self.hidden

    @property
    def embedding_parameters(self) -> Array:
        """Of the input embedding alone."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def parameters(self) -> Array:
        """Of the model."""
        head = np.where(self.tied > 0, 0.0, self.vocabulary * self.hidden)
        return self.layers / self.sharing_layers * self.block_parameters + self.embedding_parameters + head

    @property
    def model_flops(self) -> Array:
        """Of a step, forward and backward, without recomputation; attention counted in full (arXiv 2104.04473)."""
        block = 2 * self.block_parameters + 4 * self.sequence * self.hidden
        return 3 * self.tokens * (self.layers * block + 2 * self.hidden * self.vocabulary)


_RECOMPUTE = {"none": NO_RECOMPUTE, "selective": SELECTIVE, "full": FULL}
_FP32 = 4


def cases_of(configs: Sequence[RunConfig], devices_per_node: int | Sequence[int] = 8) -> Cases:
    """A row for each configuration; ranks fill one node after the other, of one size or a size for each."""
    rows = [_row(config) for config in configs]
    columns: dict[str, Any] = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return Cases.from_columns(**columns, devices_per_node=devices_per_node)


def _row(config: RunConfig) -> dict[str, float]:
    shape = resolve(config.model)
    return {
        **_sizes(config, shape),
        **_layout(config),
        **_bytes(config),
        **_replication_fields(config),
        "micro_batch": config.batch.micro_batch,
        "micro_batches": accumulation(config),
        "recompute": _RECOMPUTE[config.memory.recompute],
        "sequence_parallel": 1,
        "flash": 1,
        "bucketed": 1,
        "bubble_scale": bubble_scale(config),
        "ulysses": config.parallel.cp_method == "ulysses",
        "period": config.outer.period if config.outer.method != "none" else 1,
        "late": config.outer.method != "none" and OUTER_METHODS[config.outer.method].overlaps,
        "reduce_every_micro_batch": config.parallel.reduce_every_micro_batch,
        "gathers_once": gathers_once(config),
    }


def gathers_once(config: RunConfig) -> bool:
    """Whether ``zero_stage`` 3 gathers a chunk once a pass, not for each micro-batch."""
    stages = config.parallel.pp * config.schedule.chunks
    return SCHEDULES[config.schedule.kind].chunk_by_chunk and stages > 1


def _sizes(config: RunConfig, shape: ModelShape) -> dict[str, float]:
    model = config.model
    per_token = model.experts_per_token if model.experts else 1
    width = (model.expert_ffn_hidden or shape.ffn_hidden) if model.experts else shape.ffn_hidden
    return {
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "ffn_hidden": width * per_token,
        "vocabulary": shape.vocabulary,
        "sequence": config.data.sequence_length,
        "mlp_matrices": 3,
        "tied": config.model.tied_embeddings,
        "sums_ends": config.model.tied_embeddings,
        "sharing_layers": sharing_of(model).layers_each,
    }


def _layout(config: RunConfig) -> dict[str, float]:
    parallel, schedule = config.parallel, config.schedule
    ranks = rank_layers(config)
    return {
        "dp": parallel.dp,
        "tp": parallel.tp,
        "pp": parallel.pp,
        "cp": parallel.cp,
        "zero_stage": parallel.zero_stage,
        "chunks": schedule.chunks,
        "last_layers": ranks[-1],
        "other_layers": max(ranks[:-1], default=ranks[-1]),
    }


_ALL_SPLIT = {
    name: _USUAL[name]
    for name in (
        "whole_block",
        "whole_matrix",
        "whole_embedding",
        "whole_head",
        "norm_outputs",
        "tensor_share",
    )
}


def _replication_fields(config: RunConfig) -> dict[str, float]:
    parts, tp = config.parallel.tp_replicated or (), config.parallel.tp
    if not parts:
        return _ALL_SPLIT
    shape = resolve(config.model)
    sizes = matrix_elements(shape)
    slices = len({"query_key_value", "gate_up"} & set(parts))
    return {
        "whole_block": sum(size for part, size in sizes.items() if part in parts),
        "whole_matrix": max(_largest(shape, part) for part in parts),
        "whole_embedding": "embedding" in parts,
        "whole_head": "head" in parts,
        "norm_outputs": 2 - slices + slices / tp,
        "tensor_share": block_pairs(config)
        / block_pairs(config.with_values({"parallel.tp_replicated": None})),
    }


def _largest(shape: ModelShape, part: TensorPart) -> int:
    """Elements of the largest single matrix; of words none is in a block."""
    widths = {"query_key_value": shape.hidden, "attention_output": shape.hidden}
    return 0 if part in ("embedding", "head") else shape.hidden * widths.get(part, shape.ffn_hidden)


def matrix_elements(shape: ModelShape) -> dict[str, int]:
    """Of a dense block's matrices, by the names of ``parallel.tp_replicated``."""
    return {
        "query_key_value": shape.hidden * (shape.hidden + 2 * shape.kv_heads * shape.head_dim),
        "attention_output": shape.hidden**2,
        "gate_up": 2 * shape.hidden * shape.ffn_hidden,
        "down": shape.hidden * shape.ffn_hidden,
    }


def block_pairs(config: RunConfig) -> float:
    """What tp sends for a block in forward and backward, in pairs of a gather and a scatter of a whole activation: one
    for each group of matrices; of those that are replicated, exchanges where heads or columns meet slices.
    """
    shape, parts, tp = resolve(config.model), config.parallel.tp_replicated or (), config.parallel.tp
    heads = (shape.hidden + 2 * shape.kv_heads * shape.head_dim) / shape.hidden
    pairs = heads / tp if "query_key_value" in parts else 1.0
    pairs += 1 / tp if "attention_output" in parts else 1.0
    pairs += 2 - len({"gate_up", "down"} & set(parts))
    if ("gate_up" in parts) != ("down" in parts):
        pairs += shape.ffn_hidden / shape.hidden / tp
    return pairs


def _bytes(config: RunConfig) -> dict[str, float]:
    half = config.memory.parameters == "bf16"
    return {
        "weight_bytes": 2 if half else _FP32,
        "gradient_bytes": _FP32,
        "optimizer_bytes": _FP32 * (averages(config.train) + half),
        "reduce_bytes": reduce_bytes(config),
        "value_bytes": 2 if half or config.precision == "bf16" else _FP32,
    }


def rank_layers(config: RunConfig) -> list[int]:
    """Layers of each place of the pipeline, in all of its stages."""
    pp, schedule = config.parallel.pp, config.schedule
    stages = layers_of_stages(resolve(config.model).layers, pp * schedule.chunks, schedule.stage_layers)
    counts = [0] * pp
    for place, layers in zip(rank_of_stages(schedule.kind, pp, schedule.chunks), stages, strict=True):
        counts[place] += len(layers)
    return counts


def computed_again(config: RunConfig, *kinds: BlockAction) -> float:
    """The share of the layers that backward computes again, in one of these ways. What a budget for activations comes
    to is not known before a run.
    """
    memory, layers = config.memory, resolve(config.model).layers
    if memory.block_actions is not None:
        return sum(map(memory.block_actions.count, kinds)) / layers
    if memory.recompute not in kinds:
        return 0.0
    schedule = config.schedule
    stages = layers_of_stages(layers, config.parallel.pp * schedule.chunks, schedule.stage_layers)
    most = memory.recompute_layers or layers
    return sum(min(most, len(layers_of_stage)) for layers_of_stage in stages) / layers


def bubble_scale(config: RunConfig) -> float:
    """The schedule's bubble over that of 1F1B with as many chunks, a backward being twice a forward; 1 if unknown."""
    kind, ranks, chunks = config.schedule.kind, config.parallel.pp, config.schedule.chunks
    costs = Costs(1.0, 2.0, 1.0, 1.0)
    try:
        idle = idle_seconds(kind, ranks, chunks, accumulation(config), costs)
    except ValueError:
        return 1.0
    return idle / ((ranks - 1) * (costs.forward + costs.backward)) if ranks > 1 else 1.0


def reduce_bytes(config: RunConfig) -> float:
    """Bytes of one gradient in a ring all-reduce that sends as much as the method of compression does."""
    compression, ranks = config.compression, config.parallel.dp * config.parallel.cp
    if compression.method == "none":
        return float(_FP32)
    inputs = settings_of(compression).wire_inputs(ranks, _factor_share(resolve(config.model)))
    return COMPRESSION_METHODS[compression.method].wire_bytes(inputs)


def _factor_share(shape: ModelShape) -> float:
    """Values of both factors of rank 1 over those of the matrices that they stand for."""
    key_value = shape.kv_heads * shape.head_dim
    sides = [(shape.hidden, shape.hidden)] * 2 + [(shape.hidden, key_value)] * 2
    sides += [(shape.hidden, shape.ffn_hidden)] * 3
    return sum(rows + columns for rows, columns in sides) / sum(rows * columns for rows, columns in sides)
