"""Configurations of runs as cases for the closed forms: what our engine computes, keeps and sends. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.config.compression import usual_value
from engine.config.compression_methods import METHODS, Traffic
from engine.config.layout import accumulation, layers_of_stages
from engine.config.presets import ModelShape, resolve
from engine.config.run_config import RunConfig
from engine.schedules.actions import Costs
from engine.schedules.closed_forms import idle_seconds
from tuning.predict.model.cases import FULL, NO_RECOMPUTE, SELECTIVE, Cases

_RECOMPUTE = {"none": NO_RECOMPUTE, "selective": SELECTIVE, "full": FULL}
_FP32 = 4


def cases_of(configs: Sequence[RunConfig], devices_per_node: int | Sequence[int] = 8) -> Cases:
    """A row for each configuration; ranks fill one node after the other, of one size or a size for each."""
    rows = [_row(config) for config in configs]
    columns: dict[str, Any] = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return Cases.of(**columns, devices_per_node=devices_per_node)


def _row(config: RunConfig) -> dict[str, float]:
    shape = resolve(config.model)
    return {
        **_sizes(config, shape),
        **_layout(config, shape),
        **_bytes(config),
        "micro_batch": config.batch.micro_batch,
        "micro_batches": accumulation(config),
        "recompute": _RECOMPUTE[config.memory.recompute],
        "sequence_parallel": 1,
        "flash": 1,
        "bucketed": 1,
        "bubble_scale": bubble_scale(config),
        "ulysses": config.parallel.cp_method == "ulysses",
        "period": config.outer.period if config.outer.method != "none" else 1,
        "late": config.outer.method in ("co2", "streaming"),
        "reduce_every_micro_batch": config.parallel.reduce_every_micro_batch,
    }


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
        "tied": 0,
    }


def _layout(config: RunConfig, shape: ModelShape) -> dict[str, float]:
    parallel, schedule = config.parallel, config.schedule
    stages = layers_of_stages(shape.layers, parallel.pp * schedule.chunks, schedule.stage_layers)
    ranks = [sum(map(len, stages[rank :: parallel.pp])) for rank in range(parallel.pp)]
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


def _bytes(config: RunConfig) -> dict[str, float]:
    half = config.memory.parameters == "bf16"
    return {
        "weight_bytes": 2 if half else _FP32,
        "gradient_bytes": _FP32,
        "optimizer_bytes": 12 if half else 8,
        "reduce_bytes": reduce_bytes(config),
        "value_bytes": 2 if half or config.precision == "bf16" else _FP32,
    }


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
    value, factors = float(usual_value(compression) or 0), _factor_share(resolve(config.model))
    return METHODS[compression.method].sent(Traffic(value, compression.bucket_values, ranks, factors))


def _factor_share(shape: ModelShape) -> float:
    """Values of both factors of rank 1 over those of the matrices that they stand for."""
    key_value = shape.kv_heads * shape.head_dim
    sides = [(shape.hidden, shape.hidden)] * 2 + [(shape.hidden, key_value)] * 2
    sides += [(shape.hidden, shape.ffn_hidden)] * 3
    return sum(one + other for one, other in sides) / sum(one * other for one, other in sides)
