"""The order in which techniques are applied to one rank's part of the model."""

from __future__ import annotations

import torch

from engine.config import RunConfig
from engine.context import RankContext
from engine.layout import accumulation
from engine.parallel.data import DataParallel, ShardedOptimizerState
from engine.parallel.deferred import DeferredGradients
from engine.parallel.pipeline import PipelineExecutor
from engine.parallel.post import Post
from engine.parallel.replica import Replica
from engine.parallel.shard import FullyShardedReplica, mesh_of
from engine.parallel.tensor import TensorParallel
from engine.presets import ModelShape, resolve
from engine.schedules.actions import Plan
from engine.schedules.named import KINDS, plan
from engine.stages import layers_of_stages
from engine.workloads.decoder import Decoder, Linear, initialize


def build_stages(rank: RankContext) -> PipelineExecutor:
    """Cut the model, fill it, compile it, wrap it for data parallelism, and hand it to an executor."""
    config, at = rank.config, rank.groups.at
    chosen, shape = plan_of(config), resolve(config.model)
    layers = layers_of_stages(shape.layers, chosen.stages, config.schedule.stage_layers)
    deferred = DeferredGradients()
    stages = {
        stage: _replica(rank, _decoder(rank, shape, layers[stage], deferred))
        for stage in chosen.stages_of(at.pp)
    }
    return PipelineExecutor(stages, chosen, at.pp, _post(rank, chosen, shape), deferred, rank.timer)


def plan_of(config: RunConfig) -> Plan:
    """The schedule that all ranks of a pipeline follow."""
    schedule = config.schedule
    return plan(schedule.kind, config.parallel.pp, schedule.chunks, accumulation(config))


def compute_dtype(config: RunConfig) -> torch.dtype:
    """dtype of activations; parameters and gradients stay fp32."""
    return torch.bfloat16 if config.precision == "bf16" else torch.float32


def _decoder(rank: RankContext, shape: ModelShape, layers: range, deferred: DeferredGradients) -> Decoder:
    config = rank.config
    decoder = Decoder(
        shape,
        layers,
        TensorParallel(rank.groups.tp),
        sequence_length=config.data.sequence_length,
        dtype=compute_dtype(config),
        recompute=config.memory.recompute == "full",
    )
    initialize(decoder, config.train.seed)
    decoder = decoder.to(rank.device)
    decoder.rotary = decoder.rotary.to(rank.device)
    if KINDS[config.schedule.kind].splits_backward:
        for module in decoder.modules():
            if isinstance(module, Linear):
                module.deferred = deferred
    if config.compile:
        for block in decoder.blocks.values():
            block.compile()
    return decoder


def _replica(rank: RankContext, decoder: Decoder) -> Replica:
    layout, groups, tp_size = rank.layout, rank.groups, rank.layout.tp
    if layout.zero_stage >= 2:
        across = layout.data // layout.shard
        first = next(ranks for ranks in layout.groups("data") if rank.rank in ranks)
        ranks = [first[row * layout.shard : (row + 1) * layout.shard] for row in range(across)]
        mesh = mesh_of(groups.shard, groups.replicate, ranks, rank.device.type)
        return FullyShardedReplica(decoder, mesh, layout.zero_stage, rank.config.precision == "bf16", tp_size)
    if layout.zero_stage == 1 and groups.data is not None:
        return ShardedOptimizerState(decoder, groups.data, rank.config, rank.timer, tp_size)
    return DataParallel(decoder, groups.data, rank.config, rank.timer, tp_size)


def _post(rank: RankContext, chosen: Plan, shape: ModelShape) -> Post:
    config, layout, groups = rank.config, rank.layout, rank.groups
    sequence = config.data.sequence_length // (layout.cp * layout.tp)
    message = (sequence, config.batch.micro_batch, shape.hidden)
    return Post(chosen, groups.at.pp, groups.pp, groups.pp_back, message, compute_dtype(config), rank.device)
