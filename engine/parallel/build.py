"""The order in which techniques are applied to one rank's part of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import nn

from engine.comm.channel import Channel
from engine.comm.context import RankContext
from engine.config.formulas.expert_rows import format_of, is_bucketed, row_share
from engine.config.formulas.tied_parameters import Holders
from engine.config.layout import layers_of_stages, mean_accumulation
from engine.config.run_config import RunConfig
from engine.footprint.footprint import plan_of, whole_plan_of
from engine.model.axes import Axes, ExpertAxis, LocalExperts
from engine.model.decoder import Decoder, Linear
from engine.model.experts.mixture import Mixture
from engine.model.experts.row_buckets import RowBuckets, directions
from engine.model.experts.slots import ExpertSlots
from engine.model.linear import DeferredGradients
from engine.model.stage import Blueprint, Stage
from engine.model.workload import OwnStep, StepSetting
from engine.model.workloads.blueprint import open_blueprint
from engine.model.workloads.sequential import ListedBlueprint
from engine.parallel import compiler_cache
from engine.parallel.context.axis import DocumentAttention, context_axis
from engine.parallel.context.sequence_costs import SequenceCosts
from engine.parallel.context.sequence_measure import measure_costs
from engine.parallel.context.sequence_steps import DocumentSteps
from engine.parallel.data.averaging import AveragedParameters, SharedParameters
from engine.parallel.data.ddp import DataParallel
from engine.parallel.data.fsdp import FullyShardedReplica, Meshes, mesh_of
from engine.parallel.data.replica import (
    Replica,
    is_expert,
    is_split_over_data,
    late_parameters,
    mark_parameters,
    wide_parameters,
)
from engine.parallel.data.tied_gradients import StageSharedParameters, make_shared_groups
from engine.parallel.data.zero1 import SlicedParameters
from engine.parallel.expert import ExpertParallel, Islands
from engine.parallel.memory_plan import asks_for_plan, plan_blocks
from engine.parallel.pipeline import PipelineExecutor, RankPlan
from engine.parallel.pipeline_messages import PipelineMessages
from engine.parallel.tensor import Chunks, TensorParallel
from engine.schedules.actions import Plan

_MENDED = "torch's compiler had been killed while it wrote to its cache; what it left was removed and compiled again"


def build_stages(rank: RankContext, on_meta: bool = False) -> PipelineExecutor:
    """Cut the model, fill it, compile it, wrap it for data parallelism, and hand it to an executor.

    With ``on_meta`` parameters have sizes but neither values nor memory.
    """
    config, coordinates = rank.config, rank.groups.coordinates
    if config.compile and compiler_cache.remove_broken_entries():
        rank.note(_MENDED)
    chosen, blueprint = plan_of(config, coordinates.dp), open_blueprint(config, single_rank_axes())
    layers = layers_of_stages(blueprint.blocks, chosen.stages, config.schedule.stage_layers)
    deferred = DeferredGradients()
    late = deferred if chosen.splits_backward else None
    planned = (
        plan_blocks(rank, blueprint, chosen, layers[coordinates.pp], _axes(rank))
        if asks_for_plan(rank)
        else None
    )
    models = {
        stage: _stage(rank, blueprint, layers[stage], late, on_meta)
        for stage in chosen.stages_of(coordinates.pp)
    }
    if not on_meta:
        _keep_experts_in_slots(rank, models)
    _bucket_rows(rank, models)
    if config.data.tasks:
        _balance_apart(rank, models)
    shared = _shared_over_stages(
        rank, models, Holders(blueprint.sharing, layers, chosen.rank_of), late is not None
    )
    stages = _replicas(rank, models, shared)
    if planned is not None:
        for model in models.values():
            model.keep(planned)
    set_micro_batches(models, config, chosen, rank.folder)
    training, whole = rank_schedules(rank, chosen, blueprint)
    whole.messages.connect()
    if training is not whole:
        training.messages.connect()
    return PipelineExecutor(
        stages,
        training,
        whole,
        coordinates.pp,
        deferred,
        rank.timer,
        blueprint=blueprint,
        recorder=rank.actions,
        own_step=_own_step(rank, blueprint, models),
        documents=None if on_meta else _document_steps(rank, blueprint, stages),
    )


def single_rank_axes() -> Axes:
    """The axes of a rank that is split over none."""
    return Axes(TensorParallel(), context_axis("ring", None), LocalExperts())


def set_micro_batches(stages: Mapping[int, Stage], config: RunConfig, chosen: Plan, folder: Path) -> None:
    """Tell each stage what it has to know of the micro-batches of a step, and of the run's folder."""
    for stage, model in stages.items():
        if model.offload is not None:
            model.offload.turns_at_once = chosen.turns_at_once(stage)
            model.offload.folder = folder
        for module in model.modules():
            if isinstance(module, Mixture):
                module.balance_scale = 1.0 / mean_accumulation(config)


def _balance_apart(rank: RankContext, models: Mapping[int, Stage]) -> None:
    """Experts are balanced over the micro-batch of one dp rank: others may have none beside it."""
    for model in models.values():
        for mixture in model.mixtures().values():
            mixture.data = rank.groups.cp


def _bucket_rows(rank: RankContext, models: Mapping[int, Stage]) -> None:
    """The same directions in every layer and on every rank."""
    config = rank.config
    if not is_bucketed(config):
        return
    for model in models.values():
        for mixture in model.mixtures().values():
            turned = directions(mixture.shape.hidden, config.train.seed).to(rank.device)
            adds = config.compression.expert_residual
            mixture.buckets = RowBuckets(row_share(config), adds, turned, mixture.tp.size)


def _stage(
    rank: RankContext, blueprint: Blueprint, layers: range, late: DeferredGradients | None, on_meta: bool
) -> Stage:
    model = blueprint.stage(layers, _axes(rank), on_meta)
    if not on_meta:
        model.place(rank.device)
    if late is not None:
        for module in model.modules():
            if isinstance(module, Linear):
                module.deferred = late
    if rank.config.compile:
        for block in model.blocks.values():
            block.compile()
    return model


def _own_step(rank: RankContext, blueprint: Blueprint, models: Mapping[int, Stage]) -> OwnStep | None:
    """A workload's, if it has one."""
    if not isinstance(blueprint, ListedBlueprint) or blueprint.workload.step is None:
        return None
    (model,) = models.values()
    channel = _axes(rank).data
    tell = rank.writer.event
    return blueprint.workload.step(StepSetting(model, channel, rank.config, rank.timer.phase, tell))


def _document_steps(
    rank: RankContext, blueprint: Blueprint, stages: Mapping[int, Replica]
) -> DocumentSteps | None:
    """Where samples are whole documents; what groups take is measured on a model of its own."""
    if rank.config.data.documents != "whole":
        return None
    (replica,) = stages.values()
    costs = SequenceCosts(0.0, 1.0, 0.0)
    if rank.layout.dp > 1:
        measured = _stage(rank, blueprint, range(blueprint.blocks), None, on_meta=False)
        assert isinstance(measured, Decoder)
        costs = measure_costs(rank, measured)
    return DocumentSteps(rank, replica, costs)


def _axes(rank: RankContext) -> Axes:
    groups, parallel = rank.groups, rank.config.parallel
    data = None if groups.data is None else Channel(groups.data, rank.device)
    return Axes(
        TensorParallel(
            groups.tp,
            parallel.tp_regather,
            Chunks(rank.config.overlap.tp_chunks),
            frozenset(parallel.tp_replicated or ()),
        ),
        DocumentAttention(groups.sequence)
        if rank.config.data.documents == "whole"
        else context_axis(parallel.cp_method, groups.cp),
        _expert_axis(rank),
        data,
        data if parallel.embedding == "columns" else None,
    )


def _keep_experts_in_slots(rank: RankContext, models: Mapping[int, Stage]) -> None:
    memory = rank.config.memory
    if memory.expert_slots is None:
        return
    slots = ExpertSlots(memory.expert_slots, memory.expert_home, rank.folder, memory.expert_ahead)
    for model in models.values():
        for layer, mixture in model.mixtures().items():
            mixture.keep_in(slots, layer)


def _expert_axis(rank: RankContext) -> ExpertAxis:
    groups = rank.groups
    if groups.ep is None:
        return LocalExperts()
    islands = None
    if groups.ep_island is not None and groups.ep_between is not None:
        islands = Islands(groups.ep_island, groups.ep_between)
    return ExpertParallel(groups.ep, format_of(rank.config), islands)


def _shared_over_stages(
    rank: RankContext, models: Mapping[int, Stage], holders: Holders, split: bool
) -> StageSharedParameters:
    """Make one parameter of those of this rank that are to be one; FSDP2 shards each stage by itself."""
    parameters: dict[str, nn.Parameter] = {}
    for model in models.values():
        model.share(holders.sharing, {} if rank.layout.zero_stage >= 2 else parameters)
        mark_parameters(model)
    return make_shared_groups(rank, holders, split)


def _replicas(
    rank: RankContext, models: Mapping[int, Stage], shared: StageSharedParameters
) -> Mapping[int, Replica]:
    """What waits for the end of a step belongs to the last of this rank's stages, after all else."""
    if rank.layout.zero_stage >= 2:
        return {stage: _sharded_replica(rank, model, shared) for stage, model in models.items()}
    whole = {
        stage: _shared_parameters(rank, model, model.trained_parameters()) for stage, model in models.items()
    }
    parts = {
        stage: _averaged_parameters(rank, map(shared.select_immediate, stage_parts))
        for stage, stage_parts in whole.items()
    }
    parameters = {
        name: parameter for model in models.values() for name, parameter in model.trained_parameters().items()
    }
    last = max(models)
    at_end = _averaged_parameters(
        rank,
        (
            part
            for stage_parts in _shared_parameters(rank, models[last], parameters)
            for part in shared.group_deferred(stage_parts)
        ),
    )
    return {
        stage: DataParallel(
            model, parts[stage] + (at_end if stage == last else []), rank.config.compile, at_end
        )
        for stage, model in models.items()
    }


def _averaged_parameters(rank: RankContext, shared: Iterable[SharedParameters]) -> list[AveragedParameters]:
    sliced = rank.layout.zero_stage == 1
    return [
        (SlicedParameters if sliced and shared_parameters.group is not None else AveragedParameters)(
            shared_parameters, rank.config, rank.timer, rank.layout.tp
        )
        for shared_parameters in shared
        if shared_parameters.parameters
    ]


def _sharded_replica(rank: RankContext, model: Stage, shared: StageSharedParameters) -> FullyShardedReplica:
    unsharded = _unsharded_replica(rank, model, shared)
    return FullyShardedReplica(
        model, unsharded, _meshes(rank), rank.config, rank.layout.tp, rank.timer, shared
    )


def _unsharded_replica(rank: RankContext, model: Stage, shared: StageSharedParameters) -> DataParallel:
    """What FSDP2 would round to bf16 though it computes in fp32: it gathers in one dtype."""
    fp32 = rank.config.with_values({"memory.parameters": "fp32"})
    wide = SharedParameters(wide_parameters(model) if model.narrows(rank.config) else {}, rank.groups.data)
    parts = [
        AveragedParameters(group, fp32, rank.timer, rank.layout.tp)
        for group in (shared.select_immediate(wide), *shared.group_deferred(wide))
        if group.parameters
    ]
    return DataParallel(model, parts)


def _shared_parameters(
    rank: RankContext, model: Stage, named: Mapping[str, nn.Parameter]
) -> list[SharedParameters]:
    """All of these parameters; under ep the experts apart, since fewer ranks hold each of them, and so a table whose
    columns are split, of which each rank holds its own.
    """
    groups, ep, late, tp_rank = (
        rank.groups,
        rank.layout.ep,
        late_parameters(model),
        rank.groups.coordinates.tp,
    )
    experts = {name: parameter for name, parameter in named.items() if ep > 1 and is_expert(parameter)}
    columns = {name: parameter for name, parameter in named.items() if is_split_over_data(parameter)}
    others = {
        name: parameter for name, parameter in named.items() if name not in experts and name not in columns
    }
    return [
        SharedParameters(others, groups.data, late_parameters=late, tp_rank=tp_rank),
        SharedParameters(experts, groups.edp, spread=ep, tp_rank=tp_rank),
        SharedParameters(columns, None, spread=rank.layout.inner, tp_rank=tp_rank),
    ]


def _meshes(rank: RankContext) -> Meshes:
    layout, groups = rank.layout, rank.groups
    members = next(ranks for ranks in layout.groups("data") if rank.rank in ranks)
    rows = [members[first : first + layout.shard] for first in range(0, layout.inner, layout.shard)]
    dense = mesh_of(groups.shard, groups.replicate, rows, rank.device.type)
    if layout.ep == 1:
        return Meshes(dense)
    return Meshes(dense, mesh_of(groups.edp, None, [], rank.device.type), layout.ep)


def rank_schedules(rank: RankContext, chosen: Plan, blueprint: Blueprint) -> tuple[RankPlan, RankPlan]:
    """Of training, and of what goes through the whole pipeline: the same where nothing leaves out stages."""
    training = RankPlan(chosen, _messages_of(rank, chosen, blueprint))
    if not chosen.paths:
        return training, training
    whole = whole_plan_of(rank.config, rank.groups.coordinates.dp)
    return training, RankPlan(whole, _messages_of(rank, whole, blueprint))


def _messages_of(rank: RankContext, chosen: Plan, blueprint: Blueprint) -> PipelineMessages:
    """Messages between the stages of this rank's pipeline, as large as its micro-batches."""
    config, groups = rank.config, rank.groups
    layers = layers_of_stages(blueprint.blocks, chosen.stages, config.schedule.stage_layers)
    ends = [layer.stop - 1 for layer in layers[:-1]]
    kinds = blueprint.messages(ends, _axes(rank), config.batch.micro_batch)
    registers = config.schedule.registers
    return PipelineMessages(
        chosen, groups.coordinates.pp, groups.pp, groups.pp_back, kinds, rank.device, registers
    )
