"""What a configuration sends in a step and what its head computes, as an order of devices is judged by them. Pure.

Totals of an axis in closed form, since a search prices thousands of orders; a test holds them beside the calls of
``tuning.predict.traffic``. Payloads are those of the rank that sends most; an all-gather or a reduce-scatter counts
as half an all-reduce (docs/engine.md).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from engine.config.formulas.tied_parameters import sharing_of
from engine.config.layout import accumulation, layout_of
from engine.config.presets import resolve
from engine.config.run_config import RunConfig
from engine.footprint.activations import sizes_of
from engine.schedules.registry import SCHEDULES
from tuning.predict.model.cases import (
    block_pairs,
    computed_again,
    gathers_once,
    matrix_elements,
    rank_layers,
    reduce_bytes,
)
from tuning.predict.placement.cost import Stream, Volumes

_FP32 = 4


def volumes_of(config: RunConfig) -> Volumes:
    """Streams of every axis; what an outer loop sends in its rounds, and a loss over tp, are left out."""
    return Volumes(
        **_gradients(config),
        tp=_activations(config),
        cp=_context(config),
        ep=_experts(config),
        pp=_boundaries(config),
        wrap=_wrap(config),
    )


def head_layers(config: RunConfig) -> float:
    """Multiplications of the head, as a part of those of a layer."""
    shape, length = resolve(config.model), config.data.sequence_length
    return shape.vocabulary * shape.hidden / (shape.layer_parameters + 2 * length * shape.hidden)


def _gradients(config: RunConfig) -> dict[str, Stream]:
    """By the groups that they go in: experts have their own, and so have ZeRO's copies over less than all data ranks,
    whose gradients are summed from copy to copy.
    """
    parallel, layout = config.parallel, layout_of(config)
    elements = _largest_stage(config) / parallel.tp + _replicated_elements(config) * (1 - 1 / parallel.tp)
    streams = dict[str, Stream]()
    if config.model.experts is not None:
        experts = _Experts.from_config(config)
        elements += experts.router_difference / parallel.tp
        streams["edp"] = _data_parallel_stream(config, experts.elements / parallel.ep / parallel.tp)
    streams["dp"] = _data_parallel_stream(config, elements)
    if 1 < layout.shard < layout.inner:
        streams["shard"] = streams.pop("dp")
        scatters = accumulation(config) if parallel.reduce_every_micro_batch else 1
        streams["replicate"] = Stream(elements * reduce_bytes(config) / layout.shard, scatters)
    return streams


def _data_parallel_stream(config: RunConfig, elements: float) -> Stream:
    """So many elements of a rank, in one kind of group. ZeRO 0 sums gradients, ZeRO 1 and 2 scatter them and gather
    weights, ZeRO 3 gathers twice a micro-batch, or twice a step where a schedule works chunk by chunk.
    """
    parallel = config.parallel
    gradients = elements * reduce_bytes(config)
    half = config.memory.parameters == "bf16" or (parallel.zero_stage >= 2 and config.precision == "bf16")
    weights = elements * (2 if half else _FP32)
    if parallel.zero_stage == 0:
        return Stream(gradients)
    micro_batches = accumulation(config)
    passes = 1 if gathers_once(config) else micro_batches
    gathers = 2 * passes if parallel.zero_stage == 3 else 1
    scatters = micro_batches if parallel.reduce_every_micro_batch else 1
    turns = max(gathers // 2, scatters)
    return Stream((gathers * weights + scatters * gradients) / 2 / turns, turns)


class _Experts(NamedTuple):
    """Elements of all experts of the fullest place, and of its routers less the feed-forwards that experts replace."""

    elements: int
    router_difference: int

    @classmethod
    def from_config(cls, config: RunConfig) -> _Experts:
        """Of a model that has experts."""
        shape, experts = resolve(config.model), config.model.experts or 1
        layers = math.ceil(max(rank_layers(config)) / sharing_of(config.model).layers_each)
        width = config.model.expert_ffn_hidden or shape.ffn_hidden
        difference = shape.hidden * experts - 3 * shape.hidden * shape.ffn_hidden
        return cls(layers * experts * 3 * shape.hidden * width, layers * difference)


def _largest_stage(config: RunConfig) -> float:
    """Parameters of the fullest place of the pipeline whose gradients are averaged, of those that are trained in slices
    the slice; embeddings are at its ends.
    """
    shape, sharing = resolve(config.model), sharing_of(config.model)
    sets = [math.ceil(layers / sharing.layers_each) for layers in rank_layers(config)]
    whole = config.parallel.zero_stage or config.compression.method != "none" or config.model.experts
    sizes = [count * shape.layer_parameters * (1 if whole else config.train.slice_keep) for count in sets]
    ends = shape.vocabulary * shape.hidden
    sizes[0] += 0 if config.parallel.embedding == "columns" else ends
    if sharing.tied is None or len(sizes) > 1:
        sizes[-1] += ends
    return max(sizes)


def _replicated_elements(config: RunConfig) -> float:
    """Parameters that every rank of tp has, of the fullest place of the pipeline."""
    shape, parts, sharing = (
        resolve(config.model),
        config.parallel.tp_replicated or (),
        sharing_of(config.model),
    )
    sizes = matrix_elements(shape)
    ends = shape.vocabulary * shape.hidden * (("embedding" in parts) + ("head" in parts))
    sets = math.ceil(max(rank_layers(config)) / sharing.layers_each)
    blocks = sets * sum(sizes[part] for part in parts if part in sizes)
    return blocks + ends / (1 if config.parallel.pp == 1 and sharing.tied is None else 2)


def _activations(config: RunConfig) -> Stream:
    """A gather and a scatter of an activation in front of matrices and behind them, forward and backward; forward once
    more if recomputed, but for the last one of a block. Of matrices that are replicated two exchanges where heads or
    columns meet slices, and a sum of their gradients; under ZeRO of slices of them.
    """
    sizes, layers, parallel = sizes_of(config), max(rank_layers(config)), config.parallel
    parts = sizes.replicated
    recomputed = computed_again(config, "full")
    pairs = layers * block_pairs(config) * (1 + recomputed / 2)
    if "down" not in parts and (config.overlap.tp_chunks == 1 or config.model.experts is not None):
        pairs -= layers * recomputed / 2
    split_ends = 2 - len(parts & {"embedding", "head"})
    pairs += split_ends / (1 if parallel.pp == 1 else 2)
    if parallel.tp_regather:
        gathered = layers * (1 - recomputed) * (2 - len(parts & {"query_key_value", "gate_up"}))
        gathered += "head" not in parts
        pairs += gathered / 2
    turns, bytes_ = accumulation(config), sizes.element * sizes.hidden
    copies = layout_of(config).inner if parallel.zero_stage else 1
    pairs += _FP32 * _replicated_elements(config) / copies / bytes_ / turns
    return Stream(bytes_, pairs * turns)


def _context(config: RunConfig) -> Stream:
    """A ring's keys and values, once forward and backward, and fp32 sums of their gradients, as an all-reduce that
    sends as much; or the all-to-alls of Ulysses. What is recomputed sends once more what forward did.
    """
    sizes, cp, shape = sizes_of(config), config.parallel.cp, resolve(config.model)
    calls = max(rank_layers(config)) * accumulation(config)
    times = 1 + computed_again(config, "full", "selective") / 2
    if config.parallel.cp_method == "ulysses":
        heads = 2 * (shape.heads + shape.kv_heads) // config.parallel.tp
        return Stream(sizes.element * sizes.tokens * shape.head_dim * heads * times, calls)
    return Stream(cp * 2 * sizes.key_value * (sizes.element * times + _FP32 / 2), calls)


def _experts(config: RunConfig) -> Stream:
    """Rows to their experts and back, forward and backward."""
    if config.model.experts is None:
        return Stream()
    sizes, shape = sizes_of(config), resolve(config.model)
    rows = sizes.tokens * config.model.experts_per_token
    calls = 4 * max(rank_layers(config)) * accumulation(config)
    return Stream(sizes.element * shape.hidden * rows, calls)


def _boundaries(config: RunConfig) -> Stream:
    """A rank's slice of an activation, for each micro-batch and each of its stages, to the next place and back. Where
    rounds of stages do not wrap, every other one goes back: two stages that meet on one rank send nothing.
    """
    sizes = sizes_of(config)
    return Stream(sizes.element * sizes.slice, accumulation(config) * config.schedule.chunks)


def _wrap(config: RunConfig) -> Stream:
    """The same between the last place and the first, where rounds of stages wrap."""
    if config.parallel.pp == 1 or not SCHEDULES[config.schedule.kind].placement.wraps:
        return Stream(calls=0)
    return replace(_boundaries(config), calls=accumulation(config) * (config.schedule.chunks - 1))
