"""Seconds of a step in closed form, for many configurations at a time, and what they are made of. Pure.

A pipeline of p ranks takes (m + (p - 1) / v) times its slowest rank's micro-batch, with v chunks a rank (arXiv
2104.04473, section 2.2), and waits for its messages once in p micro-batches (arXiv 2405.18093). Gradients leave beside
the last micro-batch's backward; what does not fit is exposed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuning.predict.model import compute, network
from tuning.predict.model.cases import FULL, Array, Cases
from tuning.predict.model.compute import BlockSeconds, Device
from tuning.predict.model.constants import Constants
from tuning.predict.model.network import Links

_FP32 = 4
#: How softly the host's floor takes over from the device: the larger of two, with their power mean in between.
_SOFT = 4.0


class Machine(NamedTuple):
    """A device and its links."""

    device: Device
    links: Links

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Machine:
        """Of some rows, where its figures are columns."""
        return Machine(self.device.take(rows), self.links.take(rows))


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of the slowest rank's step by what they go to, one after the other; they add up to the step."""

    products: Array
    attention: Array
    elements: Array
    launches: Array
    recomputation: Array
    head: Array
    tensor_parallel: Array
    context_parallel: Array
    messages: Array
    bubble: Array
    data_parallel: Array
    optimizer: Array
    other: Array

    @property
    def seconds(self) -> Array:
        """Of the step."""
        terms: Array = np.sum([getattr(self, field.name) for field in fields(self)], axis=0)
        return terms

    def shares(self, row: int) -> dict[str, float]:
        """What each term is of one configuration's step, the largest first."""
        whole = float(self.seconds[row])
        shares = {field.name: float(getattr(self, field.name)[row]) / whole for field in fields(self)}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def largest(self, row: int, count: int) -> list[tuple[str, float]]:
        """The first few of them."""
        return list(self.shares(row).items())[:count]


def step(cases: Cases, machine: Machine, constants: Constants) -> Breakdown:
    """Seconds of one optimizer step of each configuration."""
    device, links = machine
    ahead = compute.forward(cases, device, constants)
    back, recomputation = compute.backward(ahead), compute.recomputed_flops(cases, ahead)
    pair = _tensor_parallel(cases, links, constants)
    waits = [_exposed_seconds(cases, pair, block, constants) for block in (ahead, back, recomputation)]
    waits[2] = np.where(cases.recompute == FULL, waits[2], 0.0)
    tensor = waits[0] + waits[1] + waits[2]
    stall = _host_stall(cases, constants)
    lifted = _launch_overhead(back, waits[1], stall) + _launch_overhead(
        recomputation, waits[2], np.where(recomputation.floor > 0, stall, 0.0)
    )
    launches = _launch_overhead(ahead, waits[0], stall) + lifted
    context = _context_parallel(cases, ahead, links, constants)
    block = ahead.device + back.device + recomputation.device + launches + tensor + context
    whole_head = 3 * head_seconds(cases, device, constants)
    layers, head = _slowest(cases, block, whole_head)
    turns = cases.micro_batches * (1 + constants.spread * np.log2(np.maximum(cases.world, 1)))
    backwards = layers * (back.device + recomputation.device + lifted + waits[1] + waits[2])
    through = cases.layers * block + whole_head
    averaged = _averaging_seconds(cases, backwards, layers * block + head, links, constants)
    return Breakdown(
        products=turns * layers * (ahead.products + back.products),
        attention=turns * layers * (ahead.attention + back.attention),
        elements=turns * layers * (ahead.elements + back.elements),
        launches=turns * layers * launches,
        recomputation=turns * layers * recomputation.device,
        head=turns * head,
        tensor_parallel=turns * layers * tensor + _replicated_seconds(cases, links, constants),
        context_parallel=turns * layers * context,
        messages=_messages(cases, links, constants),
        bubble=(through - layers * block - head) / cases.chunks * cases.bubble_scale,
        data_parallel=averaged + _summed_over_stages(cases, links, constants),
        optimizer=compute.update(cases, updated_elements(cases), device, constants),
        other=np.full(len(cases), constants.step_seconds),
    )


def block_seconds(cases: Cases, device: Device, constants: Constants) -> tuple[Array, Array]:
    """Of one micro-batch in one block, without messages: forward, and backward with what it computes again."""
    ahead = compute.forward(cases, device, constants)
    back, recomputation = compute.backward(ahead), compute.recomputed_flops(cases, ahead)
    forward, *both = (block.device + _launch_overhead(block) for block in (ahead, back, recomputation))
    return forward, both[0] + both[1]


def head_seconds(cases: Cases, device: Device, constants: Constants) -> Array:
    """Of one micro-batch's forward through the head, which takes the host as many launches as a block."""
    floor = compute.launch_floor(cases, constants)
    return _apply_floor(compute.head_forward(cases, device, constants), floor)


def _slowest(cases: Cases, block: Array, head: Array) -> tuple[Array, Array]:
    """Layers of the slowest pipeline rank, and the seconds that its head takes: the last one's, or none."""
    even = cases.layers / cases.pp
    last = np.where(cases.last_layers + cases.other_layers > 0, cases.last_layers, even)
    other = np.where(cases.other_layers > 0, cases.other_layers, even)
    ends = (cases.pp == 1) | (last * block + head >= other * block)
    return np.where(ends, last, other), np.where(ends, head, 0.0)


def rank_elements(cases: Cases) -> Array:
    """Parameters of the fullest rank, before ZeRO: its layers, and an embedding at either end of the pipeline."""
    blocks = _sets(cases) * cases.block_parameters / cases.tp
    embedding = cases.embedding_parameters / cases.tp
    both = np.where(cases.tied > 0, embedding, 2 * embedding)
    return blocks + np.where(cases.pp > 1, embedding, both) + (1 - 1 / cases.tp) * _whole_elements(cases)


def _whole_elements(cases: Cases) -> Array:
    """Parameters of matrices that every tp rank has, of the fullest rank."""
    embeddings = (cases.whole_embedding + cases.whole_head) * cases.embedding_parameters
    once = (cases.pp > 1) | (cases.tied > 0)
    return _sets(cases) * cases.whole_block + embeddings / np.where(once, 2.0, 1.0)


def _sets(cases: Cases) -> Array:
    """Sets of a layer's parameters on the fullest rank."""
    sets: Array = np.ceil(np.ceil(cases.layers / cases.pp) / cases.sharing_layers)
    return sets


def updated_elements(cases: Cases) -> Array:
    """Parameters that a rank's optimizer updates."""
    return rank_elements(cases) / np.where(cases.zero_stage >= 1, cases.dp * cases.cp, 1.0)


def _launch_overhead(block: BlockSeconds, messages: float | Array = 0.0, stall: float | Array = 0.0) -> Array:
    """What the host's floor adds to the time of what waits in the device's queue: kernels, and ``messages`` too."""
    device = block.device + messages
    return _apply_floor(device, block.floor + stall) - device


def _host_stall(cases: Cases, constants: Constants) -> Array:
    """What a host is held up by the two collectives of a pass, one after the other, beside messages between nodes."""
    per_call = constants.piped_seconds * cases.tp * network.far_hops(cases)
    return np.where(cases.tp > 1, 2 * per_call, 0.0)


def _apply_floor(device: Array, floor: Array) -> Array:
    """Seconds of what the device computes while the host launches it."""
    larger: Array = (device**_SOFT + floor**_SOFT) ** (1 / _SOFT)
    return larger


def _tensor_parallel(cases: Cases, links: Links, constants: Constants) -> Array:
    """Of one pass through a block, forward, backward or again: two all-reduces of hidden values, or as many pairs of
    all-gather and reduce-scatter.
    """
    group = network.reach(cases, cases.tp, np.ones(len(cases)))
    bytes_ = cases.value_bytes * cases.micro_batch * cases.sequence / cases.cp * cases.hidden
    reduced = network.ring(group, bytes_, links, constants)
    halves = 2 * network.ring(group, bytes_, links, constants, 1.0)
    per_layer: Array = np.where(cases.sequence_parallel > 0, halves, reduced)
    return 2 * per_layer * cases.tensor_share


def _replicated_seconds(cases: Cases, links: Links, constants: Constants) -> Array:
    """The sum over tp of gradients of matrices that all its ranks have, once a step; of slices where ZeRO made some."""
    group = network.reach(cases, cases.tp, np.ones(len(cases)))
    slices = np.where(cases.zero_stage >= 1, cases.dp * cases.cp, 1.0)
    elements = _whole_elements(cases) / slices
    summed = network.ring(group, elements * _FP32, links, constants)
    return np.where(elements > 0, summed, 0.0)


def _exposed_seconds(cases: Cases, messages: Array, block: BlockSeconds, constants: Constants) -> Array:
    """What products do not hide of tp's messages, where they are sent piece by piece beside them."""
    room = np.where(cases.tensor_beside > 0, constants.tensor_hidden_share * block.products, 0.0)
    return np.maximum(messages - room, 0.0)


def _context_parallel(cases: Cases, ahead: BlockSeconds, links: Links, constants: Constants) -> Array:
    """A ring's keys and values, beside attention, and twice that backward (arXiv 2310.01889); or all-to-alls of
    queries, keys, values and results, there and back (arXiv 2309.14509), which nothing hides.
    """
    tokens = cases.micro_batch * cases.sequence / cases.cp
    keys = 2 * cases.kv_heads * cases.head_dim / cases.tp * tokens * cases.value_bytes
    hop = network.message(cases.tp * np.maximum(cases.cp - 1, 1), cases, keys, links, constants)
    ring = 3 * (cases.cp - 1) * np.maximum(hop - ahead.attention / cases.cp, 0.0)
    dealt = keys + 2 * cases.hidden / cases.tp * tokens * cases.value_bytes
    group = network.reach(cases, cases.cp, cases.tp)
    exchanged = 2 * network.ring(group, dealt, links, constants, 1.0)
    return np.where(cases.cp > 1, np.where(cases.ulysses > 0, exchanged, ring), 0.0)


def _messages(cases: Cases, links: Links, constants: Constants) -> Array:
    """Of the pipeline: a round trip of 2 (p - 1) hops gates each p micro-batches (arXiv 2405.18093); that the last ones
    take 2 (p - 2) hops more is derived here.
    """
    bytes_ = cases.value_bytes * cases.micro_batch * cases.sequence / cases.cp * cases.hidden
    bytes_ = bytes_ / np.where(cases.scattered_boundary > 0, cases.tp, 1.0)
    hop = network.message(cases.tp * cases.cp * cases.dp, cases, bytes_, links, constants)
    rounds = cases.micro_batches / cases.pp * 2 * (cases.pp - 1) + 2 * np.maximum(cases.pp - 2, 0)
    return np.where(cases.pp > 1, cases.chunks * rounds * hop, 0.0)


def _summed_over_stages(cases: Cases, links: Links, constants: Constants) -> Array:
    """Gradients that stages of a pipeline share, in fp32, once a step: of tied embeddings over its two ends, and of a
    set of layers over all stages that have some of it. Nothing hides them.
    """
    ranks = np.clip(np.ceil(cases.sharing_layers * cases.pp / cases.layers), 1, cases.pp)
    slices = np.where(cases.zero_stage >= 2, cases.dp * cases.cp, 1.0)
    split, whole = 1 / cases.tp, 1 - 1 / cases.tp
    block = cases.block_parameters * split + cases.whole_block * whole
    end = cases.embedding_parameters * (split + whole * cases.whole_embedding)
    blocks = np.where(ranks > 1, block, 0.0)
    ends = np.where((cases.sums_ends > 0) & (cases.pp > 1), end, 0.0)
    apart = cases.tp * cases.cp * cases.dp
    of_layers = network.ring(network.reach(cases, ranks, apart), 4 * blocks / slices, links, constants)
    both = network.reach(cases, np.where(ends > 0, 2.0, 1.0), apart)
    of_ends = network.ring(both, 4 * ends / slices, links, constants)
    return np.where(blocks > 0, of_layers, 0.0) + np.where(ends > 0, of_ends, 0.0)


def _averaging_seconds(
    cases: Cases, backwards: Array, turn: Array, links: Links, constants: Constants
) -> Array:
    """Gradients at every step; or weights once in a round, waited for or beside the next one (arXiv 2401.16265)."""
    once = _data_parallel(cases, backwards, turn, links, constants)
    group = network.reach(cases, cases.dp * cases.cp, cases.tp)
    weights = network.ring(group, rank_elements(cases) * cases.weight_bytes, links, constants)
    hidden_seconds = np.where(cases.late > 0, cases.period * cases.micro_batches * turn, 0.0)
    return np.where(cases.period > 1, np.maximum(weights - hidden_seconds, 0.0) / cases.period, once)


def _data_parallel(cases: Cases, backwards: Array, turn: Array, links: Links, constants: Constants) -> Array:
    """What is left of gradients and gathers beside the computation that can hide them.

    Without sharding gradients leave beside the last backward; ZeRO 1 gathers what it updated after the optimizer.
    ZeRO 3 gathers parameters for forward and backward of each micro-batch, or of all of them where a schedule works
    chunk by chunk (layered accumulation, arXiv 2106.02679). Gradients of ZeRO 2 and 3 are
    scattered with the last micro-batch, or with each one (``reduce_every_micro_batch``); ZeRO 2 gathers as often.
    """
    group = network.reach(cases, cases.dp * cases.cp, cases.tp)
    elements = rank_elements(cases)
    calls = _sets(cases) * cases.gathers
    scattered = network.ring(group, elements * cases.reduce_bytes, links, constants, 1.0, 1.0)
    gathered = network.ring(group, elements * cases.weight_bytes, links, constants, 1.0, calls)
    room = np.where(cases.bucketed > 0, constants.hidden_share * backwards, 0.0)
    reduced = scattered * np.where(cases.zero_stage >= 1, 1.0, 2.0)
    after = np.where(cases.zero_stage >= 1, gathered, 0.0)
    whole = np.maximum(reduced - room, 0.0) + after
    every = cases.reduce_every_micro_batch > 0
    passes = np.where(cases.gathers_once > 0, 2.0 / cases.micro_batches, 2.0)
    turns = np.select([cases.zero_stage >= 3, every], [passes, 1.0], 0.0)
    per_turn = turns * gathered + np.where(every, scattered, 0.0)
    hidden_seconds = np.where(cases.bucketed > 0, constants.shard_hidden_share * turn, 0.0)
    exposed = np.hypot(np.maximum(per_turn - hidden_seconds, 0.0), constants.shard_edge * per_turn)
    once = np.where(every, 0.0, scattered + np.where(cases.zero_stage >= 3, 0.0, gathered))
    sharded = cases.micro_batches * exposed + np.maximum(once - room, 0.0)
    return np.where(cases.zero_stage >= 2, sharded, whole)
