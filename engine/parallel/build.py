"""The order in which techniques are applied to one rank's part of the model."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine.comm.channel import Channel
from engine.comm.context import RankContext
from engine.config.layout import accumulation, layers_of_stages
from engine.config.presets import ModelShape, resolve
from engine.config.run_config import RunConfig
from engine.model.activation_memory import activations_of
from engine.model.axes import Axes, LocalExperts
from engine.model.decoder import Decoder, Linear, initialize
from engine.model.linear import DeferredGradients
from engine.model.mixture import Mixture, MixtureShape
from engine.parallel import compiler_cache
from engine.parallel.context.axis import context_axis
from engine.parallel.data.averaging import AveragedParameters, SharedParameters
from engine.parallel.data.fsdp import FullyShardedReplica, Meshes, mesh_of
from engine.parallel.data.replica import Replica, is_expert, late_parameters, mark_parameters, wide_parameters
from engine.parallel.data.replicated import DataParallel
from engine.parallel.data.zero1 import SlicedParameters
from engine.parallel.expert import ExpertParallel
from engine.parallel.pipeline import PipelineExecutor, PipelineMessages
from engine.parallel.tensor import Chunks, TensorParallel
from engine.schedules.actions import Plan
from engine.schedules.registry import plan

_MENDED = "torch's compiler had been killed while it wrote to its cache; what it left was removed and compiled again"


def build_stages(rank: RankContext, on_meta: bool = False) -> PipelineExecutor:
    """Cut the model, fill it, compile it, wrap it for data parallelism, and hand it to an executor.

    With ``on_meta`` parameters have sizes but neither values nor memory.
    """
    config, at = rank.config, rank.groups.at
    if config.compile and compiler_cache.mend():
        rank.note(_MENDED)
    chosen, shape = plan_of(config), resolve(config.model)
    layers = layers_of_stages(shape.layers, chosen.stages, config.schedule.stage_layers)
    deferred = DeferredGradients()
    late = deferred if chosen.splits_backward else None
    stages = {
        stage: _replica(rank, _decoder(rank, shape, layers[stage], late, on_meta))
        for stage in chosen.stages_of(at.pp)
    }
    set_micro_batches({stage: replica.decoder for stage, replica in stages.items()}, config, chosen)
    messages = messages_of(rank, chosen)
    messages.connect()
    return PipelineExecutor(stages, chosen, at.pp, messages, deferred, rank.timer, rank.actions)


def set_micro_batches(stages: Mapping[int, Decoder], config: RunConfig, chosen: Plan) -> None:
    """Tell each stage what it has to know of the micro-batches of a step."""
    for stage, decoder in stages.items():
        if decoder.offload is not None:
            decoder.offload.turns_at_once = chosen.turns_at_once(stage)
        for module in decoder.modules():
            if isinstance(module, Mixture):
                module.balance_scale = 1.0 / accumulation(config)


def plan_of(config: RunConfig) -> Plan:
    """The schedule that all ranks of a pipeline follow."""
    schedule = config.schedule
    return plan(schedule.kind, config.parallel.pp, schedule.chunks, accumulation(config))


def compute_dtype(config: RunConfig) -> torch.dtype:
    """dtype of activations; parameters stay fp32 unless ``memory.parameters`` says otherwise, gradients do."""
    return torch.bfloat16 if config.precision == "bf16" else torch.float32


def _decoder(
    rank: RankContext, shape: ModelShape, layers: range, late: DeferredGradients | None, on_meta: bool
) -> Decoder:
    config = rank.config
    with torch.device("meta" if on_meta else "cpu"):
        decoder = Decoder(
            shape,
            layers,
            _axes(rank),
            mixture=_mixture(config, shape),
            sequence_length=config.data.sequence_length,
            dtype=compute_dtype(config),
            activations=activations_of(config),
        )
    if not on_meta:
        initialize(decoder, config.train.seed)
        decoder = decoder.to(rank.device)
        decoder.rotary = decoder.rotary.to(rank.device)
    if late is not None:
        for module in decoder.modules():
            if isinstance(module, Linear):
                module.deferred = late
    if config.compile:
        for block in decoder.blocks.values():
            block.compile()
    return decoder


def _mixture(config: RunConfig, shape: ModelShape) -> MixtureShape | None:
    model = config.model
    if model.experts is None:
        return None
    width = model.expert_ffn_hidden or shape.ffn_hidden
    top_k = model.experts_per_token
    return MixtureShape(
        shape.hidden, width, model.experts, top_k, model.capacity_factor, model.balance_weight
    )


def _axes(rank: RankContext) -> Axes:
    groups = rank.groups
    return Axes(
        TensorParallel(groups.tp, rank.config.parallel.tp_regather, Chunks(rank.config.overlap.tp_chunks)),
        context_axis(rank.config.parallel.cp_method, groups.cp),
        LocalExperts() if groups.ep is None else ExpertParallel(groups.ep, rank.config.compression.experts),
        None if groups.data is None else Channel(groups.data, rank.device),
    )


def _replica(rank: RankContext, decoder: Decoder) -> Replica:
    mark_parameters(decoder)
    layout, config, tp_size = rank.layout, rank.config, rank.layout.tp
    if layout.zero_stage >= 2:
        return FullyShardedReplica(
            decoder, _unsharded(rank, decoder), _meshes(rank), config, tp_size, rank.timer
        )
    parts = [
        (SlicedParameters if layout.zero_stage == 1 and shared.group is not None else AveragedParameters)(
            shared, config, rank.timer, tp_size
        )
        for shared in _shared(rank, decoder)
        if shared.named
    ]
    return DataParallel(decoder, parts, config.compile)


def _unsharded(rank: RankContext, decoder: Decoder) -> DataParallel:
    """What FSDP2 would round to bf16 though it computes in fp32: it gathers in one dtype."""
    fp32 = rank.config.with_values({"memory.parameters": "fp32"})
    shared = SharedParameters(
        wide_parameters(decoder) if rank.config.precision == "bf16" else {}, rank.groups.data
    )
    parts = [AveragedParameters(shared, fp32, rank.timer, rank.layout.tp)] if shared.named else []
    return DataParallel(decoder, parts)


def _shared(rank: RankContext, decoder: Decoder) -> list[SharedParameters]:
    """All parameters; under ep the experts apart, since fewer ranks hold each of them."""
    groups, ep, late, tp_rank = rank.groups, rank.layout.ep, late_parameters(decoder), rank.groups.at.tp
    named = dict(decoder.named_parameters())
    experts = {name: one for name, one in named.items() if ep > 1 and is_expert(one)}
    others = {name: one for name, one in named.items() if name not in experts}
    return [
        SharedParameters(others, groups.data, late=late, tp_rank=tp_rank),
        SharedParameters(experts, groups.edp, spread=ep, tp_rank=tp_rank),
    ]


def _meshes(rank: RankContext) -> Meshes:
    layout, groups = rank.layout, rank.groups
    members = next(ranks for ranks in layout.groups("data") if rank.rank in ranks)
    rows = [members[first : first + layout.shard] for first in range(0, layout.inner, layout.shard)]
    dense = mesh_of(groups.shard, groups.replicate, rows, rank.device.type)
    if layout.ep == 1:
        return Meshes(dense)
    return Meshes(dense, mesh_of(groups.edp, None, [], rank.device.type), layout.ep)


def messages_of(rank: RankContext, chosen: Plan) -> PipelineMessages:
    """Messages between the stages of this rank's pipeline, as large as its micro-batches."""
    config, layout, groups, shape = rank.config, rank.layout, rank.groups, resolve(rank.config.model)
    sequence = config.data.sequence_length // (layout.cp * layout.tp)
    message = (sequence, config.batch.micro_batch, shape.hidden)
    return PipelineMessages(
        chosen, groups.at.pp, groups.pp, groups.pp_back, message, compute_dtype(config), rank.device
    )
