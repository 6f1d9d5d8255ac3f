"""The rules a configuration has to keep before anything starts, each with the nearest legal values. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from engine.config import environment
from engine.config.errors import LayoutError, several
from engine.config.formulas import network
from engine.config.formulas.learning import OPTIMIZERS
from engine.config.layout import Layout, layout_of
from engine.config.presets import ModelShape, blocks_of, is_decoder, resolve
from engine.config.run_config import RunConfig
from engine.config.sections import Train
from engine.config.validation.block_actions import block_action_problems
from engine.config.validation.communication import (
    compression_problems,
    network_problems,
    outer_problems,
    overlap_problems,
)
from engine.config.validation.inactive_knobs import inactive_problems
from engine.config.validation.model.expert_slots import slot_problems
from engine.config.validation.model.frozen_model import adapting_problems
from engine.config.validation.model.multi_task import task_problems
from engine.config.validation.model.own_model import workload_problems
from engine.config.validation.model.shared_parameters import sharing_problems
from engine.config.validation.partial_pipeline import register_problems, skip_problems
from engine.config.validation.partial_products import thinning_problems
from engine.config.validation.whole_documents import document_problems
from engine.schedules.registry import SCHEDULES

#: The most devices of a wrong placement that are shown.
_SHOWN_DEVICES = 16


def check(config: RunConfig) -> Layout:
    """The layout, if it keeps every rule.

    Raises:
        LayoutError: the first rule that is broken, with the nearest legal values.
        InputError: the model's own sizes do not fit together.
    """
    for problem in problems(config):
        raise problem
    return layout_of(config)


def problems(config: RunConfig) -> Iterator[LayoutError]:
    """Every broken rule of a configuration, cheapest first."""
    blocks = blocks_of(config.model)
    yield from _world_rules(config)
    yield from _placement_rules(config)
    yield from inactive_problems(config)
    yield from _shard_rules(config)
    yield from _column_rules(config)
    yield from _document_rules(config)
    yield from document_problems(config)
    if is_decoder(config.model):
        shape = resolve(config.model)
        yield from _model_rules(config, shape)
        yield from _context_rules(config, shape)
        yield from _expert_rules(config, shape)
    else:
        yield from workload_problems(config)
    yield from task_problems(config)
    yield from _batch_rules(config)
    yield from _stage_rules(config, blocks)
    yield from sharing_problems(config, blocks)
    yield from _schedule_rules(config)
    yield from skip_problems(config)
    yield from register_problems(config)
    yield from _memory_rules(config, blocks)
    yield from block_action_problems(config, blocks)
    yield from slot_problems(config)
    yield from thinning_problems(config)
    yield from adapting_problems(config)
    yield from _optimizer_rules(config)
    yield from _validation_rules(config)
    yield from outer_problems(config, blocks)
    yield from compression_problems(config)
    yield from overlap_problems(config)
    yield from _lab_rules(config)
    yield from network_problems(config)
    yield from environment.problems(config.environment)


def _world_rules(config: RunConfig) -> Iterator[LayoutError]:
    parallel, layout = config.parallel, layout_of(config)
    if parallel.world_size is not None and parallel.world_size != layout.world_size:
        yield LayoutError(
            "parallel.world_size",
            parallel.world_size,
            f"dp={parallel.dp} x tp={parallel.tp} x pp={parallel.pp} x cp={parallel.cp} = "
            f"{several(layout.world_size, 'ranks')}; the degrees must multiply to the world size",
        )


def _placement_rules(config: RunConfig) -> Iterator[LayoutError]:
    placement, ranks = config.parallel.placement, layout_of(config).world_size
    if placement is None or sorted(placement) == list(range(ranks)):
        return
    repeated = next((device for device, times in Counter(placement).items() if times > 1), None)
    if len(placement) != ranks:
        problem = f"places {several(len(placement), 'ranks')}, and this layout has {ranks:,}"
    elif repeated is not None:
        problem = f"device {repeated} is given to more than one rank"
    else:
        problem = f"there is no device {max(placement)}"
    value = placement if len(placement) <= _SHOWN_DEVICES else f"{str(placement[:_SHOWN_DEVICES])[:-1]}, ...]"
    choices = f"0 to {ranks - 1}" if ranks > 1 else "0"
    yield LayoutError(
        "parallel.placement",
        value,
        f"{problem}; give each of {choices} once, one device a rank, or leave it out",
    )


def _shard_rules(config: RunConfig) -> Iterator[LayoutError]:
    parallel, layout = config.parallel, layout_of(config)
    if parallel.reduce_every_micro_batch and parallel.zero_stage < 2:
        yield LayoutError(
            "parallel.reduce_every_micro_batch",
            True,
            "only zero_stage 2 or 3 shards gradients; set it to false, or choose one of them",
        )
    yield from _replication_rules(config)
    if parallel.shard_ranks is None:
        return
    if parallel.shard_ranks == 1:
        yield LayoutError(
            "parallel.shard_ranks", 1, "splits nothing; leave it out, or choose zero_stage 0 or 1"
        )
    elif parallel.zero_stage < 2:
        yield LayoutError(
            "parallel.shard_ranks", parallel.shard_ranks, "only zero_stage 2 or 3 shards; leave it out"
        )
    elif layout.data % parallel.shard_ranks:
        yield _not_divisible(
            "parallel.shard_ranks", parallel.shard_ranks, f"dp x cp = {layout.data}", layout.data
        )


def _replication_rules(config: RunConfig) -> Iterator[LayoutError]:
    """Of ``parallel.tp_replicated``."""
    parts, key = config.parallel.tp_replicated, "parallel.tp_replicated"
    if not parts:
        return
    repeated = next((part for part, times in Counter(parts).items() if times > 1), None)
    if repeated is not None:
        yield LayoutError(key, parts, f"names {repeated} twice; name each part once")
    if config.model.experts is not None and {"gate_up", "down"} & set(parts):
        yield LayoutError(key, parts, "experts take the place of gate_up and down; leave them out")
    if config.model.tied_embeddings and ("embedding" in parts) != ("head" in parts):
        yield LayoutError(
            key, parts, "tied embeddings are one matrix; name both embedding and head, or neither"
        )


def _document_rules(config: RunConfig) -> Iterator[LayoutError]:
    """The mask of documents is made of the tokens: where a rank has all of a sequence, and its tokens."""
    parallel, why = config.parallel, None
    if config.data.documents == "joined" or not is_decoder(config.model):
        return
    if resolve(config.model).vocabulary < 256:
        why = "needs token 255 for borders; set model.vocabulary to 256 or more"
    elif parallel.cp > 1:
        why = f"cp={parallel.cp} splits sequences; set cp to 1"
    elif parallel.pp > 1:
        why = f"pp={parallel.pp} has stages without tokens; set pp to 1"
    elif config.data.documents == "masked" and config.schedule.chunks > 1:
        why = f"schedule.chunks={config.schedule.chunks} has stages without tokens; set schedule.chunks to 1"
    if why is not None:
        yield LayoutError("data.documents", config.data.documents, why)


def _column_rules(config: RunConfig) -> Iterator[LayoutError]:
    """Of ``parallel.embedding``."""
    key, parallel, data = "parallel.embedding", config.parallel, layout_of(config).data
    if parallel.embedding != "columns" or not is_decoder(config.model):
        return
    why = None
    if data == 1:
        why = "splits columns over dp x cp, which is 1; leave it out, or raise dp"
    elif resolve(config.model).hidden % data:
        why = f"dp x cp = {data} must divide hidden={resolve(config.model).hidden}; choose another dp"
    elif parallel.tp > 1:
        why = f"tp={parallel.tp} splits the embedding by words already; leave it out, or set tp to 1"
    elif parallel.zero_stage >= 2:
        why = f"zero_stage={parallel.zero_stage} shards the embedding already; leave it out, or choose 0 or 1"
    elif config.model.tied_embeddings:
        why = "the head needs all of a tied embedding; set model.tied_embeddings to false"
    elif config.outer.method != "none":
        why = "replicas of an outer loop need embeddings of their own; set outer.method to none"
    if why is not None:
        yield LayoutError(key, parallel.embedding, why)


def _model_rules(config: RunConfig, shape: ModelShape) -> Iterator[LayoutError]:
    parallel, length = config.parallel, config.data.sequence_length
    divided = {
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "ffn_hidden": shape.ffn_hidden,
        "vocabulary": shape.vocabulary,
        "sequence_length": length,
    }
    for name, size in divided.items():
        if size % parallel.tp:
            yield _not_divisible("parallel.tp", parallel.tp, f"{name}={size}", size)


def _context_rules(config: RunConfig, shape: ModelShape) -> Iterator[LayoutError]:
    """A ring gives each rank two slices of the sequence; Ulysses deals the heads that tp left to the ranks."""
    parallel, length = config.parallel, config.data.sequence_length
    cp, tp, ring = parallel.cp, parallel.tp, parallel.cp_method == "ring"
    if cp == 1:
        return
    parts = math.lcm(2 * cp if ring else cp, cp * tp)
    if length % parts:
        nearest = max(parts, round(length / parts) * parts)
        yield LayoutError(
            "data.sequence_length",
            length,
            f"must be a multiple of {parts} with cp={cp} ({parallel.cp_method}) and tp={tp}; nearest legal: {nearest}",
        )
    for name, heads in (("heads", shape.heads), ("kv_heads", shape.kv_heads)):
        if not ring and heads % tp == 0 and heads // tp % cp:
            yield _not_divisible(
                "parallel.cp", cp, f"{name} / tp = {heads // tp} with cp_method=ulysses", heads // tp
            )


def _expert_rules(config: RunConfig, shape: ModelShape) -> Iterator[LayoutError]:
    model, parallel, data = config.model, config.parallel, layout_of(config).data
    if model.experts is None:
        for name, value, default in (
            ("parallel.ep", parallel.ep, 1),
            ("parallel.ep_island", parallel.ep_island, None),
            ("model.capacity_factor", model.capacity_factor, None),
        ):
            if value != default:
                remedy = "leave this out" if default is None else f"this to {default}"
                yield LayoutError(name, value, f"there are no experts; set model.experts, or {remedy}")
        return
    if model.experts_per_token > model.experts:
        yield LayoutError(
            "model.experts_per_token", model.experts_per_token, f"must be at most experts={model.experts}"
        )
    island = parallel.ep_island
    if island is not None and (parallel.ep % island or not 1 < island < parallel.ep):
        inner = [size for size in range(2, parallel.ep) if parallel.ep % size == 0]
        remedy = f"choose one of {inner}" if inner else "leave it out: rows go straight to their rank"
        yield LayoutError(
            "parallel.ep_island", island, f"must divide ep={parallel.ep} into islands; {remedy}"
        )
    if model.experts % parallel.ep:
        yield _not_divisible("parallel.ep", parallel.ep, f"experts={model.experts}", model.experts)
    if data % parallel.ep:
        yield _not_divisible("parallel.ep", parallel.ep, f"dp x cp = {data}", data)
    width = model.expert_ffn_hidden or shape.ffn_hidden
    if width % parallel.tp:
        yield _not_divisible("parallel.tp", parallel.tp, f"expert_ffn_hidden={width}", width)
    if config.compile:
        yield LayoutError("compile", True, "tokens per expert change from step to step; set it to false")


def _batch_rules(config: RunConfig) -> Iterator[LayoutError]:
    dp, batch = config.parallel.dp, config.batch
    if config.data.tasks:
        return  # ranks may have unequal numbers of micro-batches
    if batch.global_batch % dp:
        yield _not_divisible("parallel.dp", dp, f"global_batch={batch.global_batch}", batch.global_batch)
    elif batch.global_batch // dp % batch.micro_batch:
        per_rank = batch.global_batch // dp
        yield _not_divisible(
            "batch.micro_batch", batch.micro_batch, f"global_batch / dp = {per_rank}", per_rank
        )
    elif batch.ramp_from is not None:
        yield from _ramp_rules(config, batch.ramp_from)


def _ramp_rules(config: RunConfig, first: int) -> Iterator[LayoutError]:
    """Batches are multiples of the first one, so that they are the same in all layouts that can take them."""
    batch, samples_per_pass = config.batch, config.parallel.dp * config.batch.micro_batch
    if batch.global_batch % first:
        yield _not_divisible(
            "batch.ramp_from", first, f"global_batch={batch.global_batch}", batch.global_batch
        )
    elif first % samples_per_pass:
        legal = [
            size
            for size in range(samples_per_pass, batch.global_batch + 1, samples_per_pass)
            if batch.global_batch % size == 0
        ]
        nearest = min(legal, key=lambda size: abs(size - first))
        multiple = f"a multiple of dp x micro_batch = {samples_per_pass}"
        remedy = f"must be {multiple}, what ranks take at once; nearest legal: {nearest}"
        yield LayoutError("batch.ramp_from", first, remedy)


def _stage_rules(config: RunConfig, layers: int | None) -> Iterator[LayoutError]:
    """``layers`` are those of the model, None where nobody knows them yet."""
    schedule, pp = config.schedule, config.parallel.pp
    stages, stage_layers = pp * schedule.chunks, schedule.stage_layers
    if layers is None:
        return
    if stages > layers:
        field, value = ("parallel.pp", pp) if schedule.chunks == 1 else ("schedule.chunks", schedule.chunks)
        nearest = layers if schedule.chunks == 1 else max(1, layers // pp)
        yield LayoutError(field, value, f"{stages} stages for layers={layers}; nearest legal: {nearest}")
    if stage_layers is not None and (len(stage_layers) != stages or sum(stage_layers) != layers):
        yield LayoutError(
            "schedule.stage_layers",
            stage_layers,
            f"{several(len(stage_layers), 'stages')} with {several(sum(stage_layers), 'layers')}; "
            f"give {several(stages, 'numbers')} with a sum of {layers}",
        )


def _schedule_rules(config: RunConfig) -> Iterator[LayoutError]:
    schedule, parallel = config.schedule, config.parallel
    kind = SCHEDULES[schedule.kind]
    splits = kind.splits_backward and parallel.pp * schedule.chunks > 1
    if problem := kind.chunks_problem(schedule.chunks):
        yield LayoutError("schedule.chunks", schedule.chunks, f"{problem} ({schedule.kind})")
    if splits and parallel.zero_stage >= 2:
        yield LayoutError(
            "schedule.kind",
            schedule.kind,
            "splits the backward, which needs whole parameters; set zero_stage to 0 or 1",
        )
    if splits and config.compile:
        yield LayoutError(
            "schedule.kind", schedule.kind, "splits the backward outside compiled code; set compile to false"
        )


def _memory_rules(config: RunConfig, blocks: int | None) -> Iterator[LayoutError]:
    memory, schedule = config.memory, config.schedule
    layers = memory.recompute_layers
    # Where nobody knows the model yet, as many as are asked for.
    even = (layers or 1) if blocks is None else math.ceil(blocks / (config.parallel.pp * schedule.chunks))
    most = max(schedule.stage_layers or [even])
    if layers is not None and memory.recompute != "none" and layers > most:
        yield LayoutError(
            "memory.recompute_layers",
            layers,
            f"the largest stage has {several(most, 'layers')}; nearest legal: {most}, or leave it out for all of them",
        )
    if memory.parameters == "bf16" and config.precision != "bf16":
        yield LayoutError(
            "memory.parameters", "bf16", "needs precision bf16; set precision to bf16, or this to fp32"
        )


def _optimizer_rules(config: RunConfig) -> Iterator[LayoutError]:
    """Muon makes a whole matrix orthogonal; LAMB and LARS sum over ranks once all gradients are there."""
    kind, parallel = config.train.optimizer, config.parallel
    if kind == "muon" and (parallel.zero_stage or parallel.tp > 1):
        text = f"tp={parallel.tp}" if parallel.tp > 1 else f"zero_stage={parallel.zero_stage}"
        remedy = f"updates whole matrices, which {text} cuts; set it to adamw or lamb, or zero_stage to 0 and tp to 1"
        yield LayoutError("train.optimizer", kind, remedy)
    if OPTIMIZERS[kind].whole_sums and config.overlap.gather_with_optimizer:
        remedy = "updates all parameters at once: nothing can be sent beside it; set it to false"
        yield LayoutError("overlap.gather_with_optimizer", True, remedy)
    yield from _rate_rules(config.train)
    train = config.train
    if train.seconds is not None and train.seconds >= train.timeout_seconds:
        remedy = f"train.timeout_seconds={train.timeout_seconds:g} ends the run before; raise that"
        yield LayoutError("train.seconds", train.seconds, remedy)


def _rate_rules(train: Train) -> Iterator[LayoutError]:
    """Nobody knows how many steps fit into ``seconds``: where that is not all of the warm-up, the rate only rises."""
    schedule, rise = train.learning_rate_schedule, train.learning_rate_warmup
    if schedule == "one_cycle" and rise:
        remedy = (
            "one_cycle rises over half of the steps by itself; leave it at 0, or take the schedule linear"
        )
        yield LayoutError("train.learning_rate_warmup", rise, remedy)
    elif schedule != "constant" and train.steps <= rise and train.seconds is None:
        whole = "the only step is" if train.steps == 1 else f"all {train.steps} steps are"
        remedy = f"{whole} warm-up, and nothing falls after it; lower learning_rate_warmup"
        yield LayoutError("train.learning_rate_schedule", schedule, remedy)
    if train.learning_rate_scaling != "none" and train.learning_rate_batch is None:
        remedy = "say in train.learning_rate_batch for which global batch train.learning_rate was chosen, or take none"
        yield LayoutError("train.learning_rate_scaling", train.learning_rate_scaling, remedy)


def _validation_rules(config: RunConfig) -> Iterator[LayoutError]:
    train = config.train
    if train.validate_every is not None and not train.validation_batches:
        yield LayoutError(
            "train.validate_every",
            train.validate_every,
            "there is no held-out batch; set train.validation_batches to 1 or more, or leave it out",
        )


def _lab_rules(config: RunConfig) -> Iterator[LayoutError]:
    problems, ranks = list(network.problems(config.lab)), layout_of(config).world_size
    yield from problems
    if problems or not config.lab.is_wanted:
        return
    shape = network.shape_of(config.lab)
    if shape is not None and ranks % shape.hosts:
        field = "lab.islands" if config.lab.hosts is None else "lab.hosts"
        yield _not_divisible(field, shape.hosts, f"the {several(ranks, 'ranks')}", ranks)
    if config.device == "cuda":
        yield LayoutError("device", "cuda", "ranks of the lab run on the CPU; set device to auto or cpu")


def _not_divisible(field: str, value: int, divisor: str, size: int) -> LayoutError:
    small = [n for n in range(1, math.isqrt(size) + 1) if size % n == 0]
    divisors = small + [size // n for n in small]
    below = max((n for n in divisors if n <= value), default=1)
    above = min((n for n in divisors if n >= value), default=size)
    nearest = f"{below} or {above}" if above != below else f"{below}"
    return LayoutError(field, value, f"must divide {divisor}; nearest legal: {nearest}")
