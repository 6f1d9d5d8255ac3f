"""The order in which techniques are applied to one rank's part of the model."""

from __future__ import annotations

import torch

from engine.config import RunConfig
from engine.context import RankContext
from engine.parallel.data import DataParallel
from engine.parallel.pipeline import Link, StageExecutor
from engine.parallel.replica import Replica, Single
from engine.parallel.shard import FullyShardedReplica
from engine.parallel.tensor import TensorParallel
from engine.presets import ModelShape, resolve
from engine.workloads.decoder import Decoder, initialize


def build_stage(rank: RankContext) -> StageExecutor:
    """Cut the model, fill it, compile it, wrap it for data parallelism, and hand it to an executor."""
    config, shape = rank.config, resolve(rank.config.model)
    decoder = _decoder(rank, shape)
    initialize(decoder, config.train.seed)
    decoder = decoder.to(rank.device)
    decoder.rotary = decoder.rotary.to(rank.device)
    if config.compile:
        for block in decoder.blocks.values():
            block.compile()
    return _executor(rank, _replica(rank, decoder), shape)


def stage_layers(layers: int, stages: int, stage: int) -> range:
    """The consecutive layers of one stage."""
    each = layers // stages
    return range(stage * each, (stage + 1) * each)


def compute_dtype(config: RunConfig) -> torch.dtype:
    """dtype of activations; parameters and gradients stay fp32."""
    return torch.bfloat16 if config.precision == "bf16" else torch.float32


def _decoder(rank: RankContext, shape: ModelShape) -> Decoder:
    layout, at = rank.layout, rank.groups.at
    return Decoder(
        shape,
        stage_layers(shape.layers, layout.pp, at.pp),
        TensorParallel(rank.groups.tp),
        sequence_length=rank.config.data.sequence_length,
        dtype=compute_dtype(rank.config),
        recompute=rank.config.memory.recompute == "full",
    )


def _replica(rank: RankContext, decoder: Decoder) -> Replica:
    if rank.layout.zero_stage == 3:
        return FullyShardedReplica(decoder, rank.groups.dp, rank.config.precision == "bf16")
    if rank.groups.dp is not None:
        return DataParallel(decoder, rank.groups.dp, rank.config, rank.timer)
    return Single(decoder)


def _executor(rank: RankContext, replica: Replica, shape: ModelShape) -> StageExecutor:
    config, layout, groups = rank.config, rank.layout, rank.groups
    message = (config.data.sequence_length // layout.tp, config.batch.micro_batch, shape.hidden)
    links = [
        Link(group, message, compute_dtype(config), rank.device) for group in (groups.pp, groups.pp_backward)
    ]
    return StageExecutor(replica, groups.at.pp, layout.pp, rank.timer, links[0], links[1])
