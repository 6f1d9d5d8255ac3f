"""The plan for ``memory.budget_gib``: what each action costs on this machine, and the list that a stage then follows.

Before the model takes its memory one block is built, and runs forward and backward as each action has it. Bytes are
those that a hook sees, or the formula's where these are more. All ranks follow the slowest of them in everything.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from engine.comm import host_values
from engine.comm.context import RankContext
from engine.comm.store import RankStore
from engine.config.run_config import RunConfig
from engine.config.sections import BlockAction
from engine.footprint import block_plan
from engine.footprint.activations import costs_of_block
from engine.footprint.block_plan import LEAVING, BlockPlan, Choices, Cost, StageOverhead
from engine.footprint.budget import stage_surroundings, too_small
from engine.model.activation_memory import Activations, Offload, Tier, is_weight
from engine.model.axes import Axes
from engine.model.copies import Copies, DiskCopies, host_copies
from engine.model.decoder import Block, Decoder, same_document
from engine.model.stage import Blueprint
from engine.schedules.actions import Plan
from profilers import torch_private
from profilers.analysis.events import MEMORY_PLAN_EVENT
from profilers.collectives.recorder import pause_recording

#: Each is run so often, the first time unmeasured; the shortest counts: what else goes on only makes it longer.
_REPEATS = 6
_WITHOUT_COPIES: tuple[BlockAction, ...] = ("keep", "selective", "full")
_TIERS: dict[BlockAction, Tier] = {"offload": "host", "disk": "disk"}


@dataclass(frozen=True, slots=True)
class BlockMeasurement:
    """Of one block: by action what a hook saw of its forward in bytes, and seconds; of what leaves also the copies'.
    ``turn`` is the head's, forward and backward, 0 where there is none.
    """

    saved: dict[str, int]
    forward: dict[str, float]
    backward: dict[str, float]
    out: dict[str, float]
    back: dict[str, float]
    turn: float = 0.0


def asks_for_plan(rank: RankContext) -> bool:
    """Whether this run has a budget, and ranks that compute."""
    return rank.config.memory.budget_gib is not None and rank.device.type != "meta"


def plan_blocks(
    rank: RankContext, blueprint: Blueprint, chosen: Plan, layers: range, axes: Axes
) -> Activations:
    """What this rank's stage does with each of its blocks; all ranks make the same calls.

    Raises:
        LayoutError: by what was measured no list of actions fits the budget.
    """
    began, store = time.monotonic(), RankStore(rank, "memory")

    def copies_of(action: BlockAction) -> Copies:
        return host_copies(rank.device) if action == "offload" else DiskCopies(rank.device, rank.folder)

    with pause_recording():
        measurement = measure(rank.config, blueprint, layers, axes, rank.device, copies_of)
    measured = store.gather("measured", asdict(measurement))
    costs = BlockMeasurement(**store.broadcast("slowest", lambda: slowest(measured)))
    block = add_seconds(costs_of_block(rank.config), costs)
    stage, choices = rank.groups.coordinates.pp, [block] * len(layers)
    overhead = stage_surroundings(
        rank.config, chosen, stage, costs.turn if layers.stop == blueprint.blocks else 0.0
    )
    plan = _best_plan(rank, choices, overhead)
    coordinates = rank.groups.coordinates
    if coordinates.dp == coordinates.tp == coordinates.cp == 0:
        facts = {"stage": stage, "first": layers.start, "seconds": time.monotonic() - began}
        rank.writer.event(MEMORY_PLAN_EVENT, **facts, **_plan_report(plan, choices, overhead, _budget(rank)))
    actions: list[BlockAction] = ["keep"] * blueprint.blocks
    actions[layers.start : layers.stop] = plan.actions
    return Activations(actions=tuple(actions))


def _budget(rank: RankContext) -> int:
    """In bytes."""
    return int((rank.config.memory.budget_gib or 0.0) * 2**30)


def _best_plan(rank: RankContext, choices: Choices, overhead: StageOverhead) -> BlockPlan:
    plan = block_plan.best(choices, overhead, _budget(rank))
    if plan is None:
        least = block_plan.least_bytes(choices, overhead)
        raise too_small(rank.config.memory.budget_gib or 0.0, least)
    return plan


def _plan_report(plan: BlockPlan, choices: Choices, overhead: StageOverhead, budget: int) -> dict[str, Any]:
    """The plan, beside the fastest way to treat all blocks alike."""
    fitting = [plan for plan in block_plan.uniform(choices, overhead) if plan.peak_bytes <= budget]
    best = min(fitting, key=lambda plan: plan.seconds, default=None)
    return {
        "actions": list(plan.actions),
        "budget_bytes": budget,
        "peak_bytes": plan.peak_bytes,
        "least_bytes": block_plan.least_bytes(choices, overhead),
        "micro_batch_seconds": plan.seconds,
        "uniform": None if best is None else best.actions[0],
        "uniform_seconds": None if best is None else best.seconds,
        "costs": {action: asdict(cost) for action, cost in choices[0].items()},
    }


def slowest(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """The largest of what ranks measured, number by number."""
    first = measured[0]
    return {
        name: {key: max(measurement[name][key] for measurement in measured) for key in value}
        if isinstance(value, dict)
        else max(measurement[name] for measurement in measured)
        for name, value in first.items()
    }


#: What is not kept takes at least so much longer: of equal plans the one that holds less would be taken.
MORE = 1.001


def add_seconds(block: Mapping[BlockAction, Cost], measured: BlockMeasurement) -> dict[BlockAction, Cost]:
    """The formula's costs, with what was measured."""
    whole = max(block["keep"].forward_bytes, measured.saved["keep"])
    return {action: _with_seconds(action, cost, measured, whole) for action, cost in block.items()}


def _with_seconds(action: BlockAction, cost: Cost, measured: BlockMeasurement, whole: int) -> Cost:
    forward, backward = measured.forward[action], measured.backward[action]
    if action != "keep":  # what does more cannot take less, whatever a busy machine makes of it
        backward = max(backward, MORE * (measured.forward["keep"] + measured.backward["keep"]) - forward)
    timed = replace(cost, forward_seconds=forward, backward_seconds=backward)
    if action not in LEAVING:
        resident = max(cost.resident, measured.saved[action])
        at_once = max(cost.backward_bytes, whole, resident)
        return replace(timed, resident=resident, forward_bytes=resident, backward_bytes=at_once)
    return replace(
        timed,
        resident=measured.saved[action],
        forward_bytes=whole,
        backward_bytes=whole,
        away=whole - measured.saved[action],
        out_seconds=measured.out[action],
        back_seconds=measured.back[action],
    )


def measure(
    config: RunConfig,
    blueprint: Blueprint,
    layers: range,
    axes: Axes,
    device: torch.device,
    copies_of: Callable[[BlockAction], Copies],
) -> BlockMeasurement:
    """Of the first block of these layers, and of the head if the last one is theirs; nothing of either stays.
    ``copies_of`` makes what ``offload`` and ``disk`` copy with.
    """
    first = _stage(config, blueprint, range(layers.start, layers.start + 1), axes, device)
    ((shape, dtype),) = blueprint.messages([layers.start], axes, config.batch.micro_batch)
    x = torch.linspace(-1, 1, torch.Size(shape).numel(), dtype=dtype, device=device).view(shape)
    bench = BlockBenchmark(first, x)
    measured = BlockMeasurement({}, {}, {}, {}, {})
    for action in _WITHOUT_COPIES:
        measured.saved[action] = bench.measure_saved_bytes(action)
        measured.forward[action], measured.backward[action] = bench.seconds(action)
    for action in LEAVING:
        _measure_leaving(bench, action, copies_of(action), measured)
    turn = 0.0
    if layers.stop == blueprint.blocks:
        last = _stage(config, blueprint, range(layers.stop - 1, layers.stop), axes, device)
        turn = BlockBenchmark(last, x).turn_seconds(config)
    return replace(measured, turn=turn)


def _measure_leaving(
    bench: BlockBenchmark, action: BlockAction, copies: Copies, measured: BlockMeasurement
) -> None:
    offload = Offload()
    offload.tiers = [_TIERS[action]]
    offload.take(_TIERS[action], copies)
    try:
        measured.out[action], measured.back[action] = bench.copy_seconds(copies, measured.saved["keep"])
        forward, backward = bench.seconds(action, offload)
        measured.saved[action] = offload.device_bytes
    finally:
        offload.close()
    # Its backward waited for all of the way back, which a plan counts by itself.
    measured.forward[action] = max(forward, measured.forward["keep"])
    measured.backward[action] = max(backward - measured.back[action], measured.backward["keep"])


def _stage(
    config: RunConfig, blueprint: Blueprint, layers: range, axes: Axes, device: torch.device
) -> Decoder:
    stage = blueprint.stage(layers, axes)
    assert isinstance(stage, Decoder)
    stage.place(device)
    if config.compile:
        for block in stage.blocks.values():
            block.compile()
    return stage


class BlockBenchmark:
    """One block, run again and again."""

    def __init__(self, stage: Decoder, x: Tensor) -> None:
        self._stage, self._x = stage, x
        (self._block,) = stage.blocks.values()
        # Where documents are masked, of one that fills each sequence.
        batch, length = x.shape[1], len(stage.positions)
        tokens = torch.zeros((batch, length), dtype=torch.int64, device=x.device)
        self._visible = same_document(tokens) if stage.masked else None

    def seconds(self, action: BlockAction, offload: Offload | None = None) -> tuple[float, float]:
        """Of a forward and of a backward; what leaves is gone in between, outside of both."""
        self._keep(action)
        return self._time_passes(lambda x: self._run(x, offload), offload)

    def measure_saved_bytes(self, action: BlockAction) -> int:
        """What its forward saves for backward; memory that several tensors share counts once."""
        self._keep(action)
        sizes, alive = dict[int, int](), list[Tensor]()
        shared = [tensor for tensor in (self._stage.rotary, self._visible) if tensor is not None]
        resident = [torch_private.memory_identity(tensor) for tensor in shared]

        def note(tensor: Tensor) -> Tensor:
            address = torch_private.memory_identity(tensor)
            if not is_weight(tensor) and address not in resident:
                sizes[address] = tensor.untyped_storage().nbytes()
                alive.append(tensor)
            return tensor

        with saved_tensors_hooks(note, lambda tensor: tensor):
            self._run(self._input(), None)
        return sum(sizes.values())

    def copy_seconds(self, copies: Copies, size: int) -> tuple[float, float]:
        """Of so many bytes down and up, as the tensors of a block."""
        part = torch.zeros(max(1, size // 8), dtype=torch.uint8, device=self._x.device)
        outs, backs = [], []
        for _ in range(_REPEATS):
            flats = [part.clone() for _ in range(8)]
            self._settle()
            began = time.perf_counter()
            away = copies.start_offload(flats)
            away.leave()()
            self._settle()
            turned = time.perf_counter()
            copies.start_fetch(away).wait()
            self._settle()
            outs.append(turned - began)
            backs.append(time.perf_counter() - turned)
        return min(outs[1:]), min(backs[1:])

    def turn_seconds(self, config: RunConfig) -> float:
        """Of norm, head and loss: a stage with them, less its block."""
        self._keep("keep")
        alone = sum(self._time_passes(lambda x: self._run(x, None), None))
        length = config.data.sequence_length // config.parallel.cp
        targets = torch.zeros((config.batch.micro_batch, length), dtype=torch.int64, device=self._x.device)
        turned = functools.partial(self._loss, targets=targets)
        return max(0.0, sum(self._time_passes(turned, None)) - alone)

    def _time_passes(self, run: Callable[[Tensor], Tensor], offload: Offload | None) -> tuple[float, float]:
        forwards, backwards = [], []
        for _ in range(_REPEATS):
            x = self._input()
            self._settle()
            began = time.perf_counter()
            out = run(x)
            self._settle()
            forwards.append(time.perf_counter() - began)
            if offload is not None:
                offload.wait()
            gradient = torch.ones_like(out)
            began = time.perf_counter()
            out.backward(gradient)
            self._settle()
            backwards.append(time.perf_counter() - began)
            self._stage.zero_grad()
        return min(forwards[1:]), min(backwards[1:])

    def _run(self, x: Tensor, offload: Offload | None) -> Tensor:
        block = functools.partial(self._block, visible=self._visible)
        if offload is not None:
            return offload.run([block], x, self._stage.rotary)
        out: Tensor = block(x, self._stage.rotary)
        return out

    def _loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return self._stage.loss(self._stage.output_logits(self._run(x, None)), targets)

    def _keep(self, action: BlockAction) -> None:
        block: nn.Module = self._block
        assert isinstance(block, Block)
        block.keep(action if action in ("selective", "full") else "none")

    def _input(self) -> Tensor:
        return self._x.detach().requires_grad_(True)

    def _settle(self) -> None:
        if self._x.is_cuda:
            host_values.wait_for_device(self._x.device)
