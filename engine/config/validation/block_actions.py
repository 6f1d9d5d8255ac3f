"""The rules of what becomes of each block's activations, given one by one or planned for a budget. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import LayoutError, several
from engine.config.run_config import RunConfig
from engine.schedules.registry import SCHEDULES

_ACTIONS, _BUDGET = "memory.block_actions", "memory.budget_gib"


def block_action_problems(config: RunConfig, blocks: int | None) -> Iterator[LayoutError]:
    """``blocks`` are those of the model, None where nobody knows them yet."""
    memory = config.memory
    actions, budget = memory.block_actions, memory.budget_gib
    if actions is not None and blocks is not None and len(actions) != blocks:
        remedy = f"the model has {several(blocks, 'blocks')}; give one action for each of them"
        yield LayoutError(_ACTIONS, several(len(actions), "actions"), remedy)
    if budget is not None and actions is not None:
        yield LayoutError(
            _BUDGET, budget, "memory.block_actions says already what becomes of each block; leave one out"
        )
    elif budget is not None or actions is not None:
        yield from _said_twice(config, _ACTIONS if budget is None else _BUDGET)
    if budget is not None:
        yield from _budget_problems(config)


def _said_twice(config: RunConfig, key: str) -> Iterator[LayoutError]:
    memory = config.memory
    if memory.recompute != "none":
        yield LayoutError(
            "memory.recompute", memory.recompute, f"{key} decides it block by block; set it to none"
        )
    if memory.offload in ("activations", "both"):
        nearest = "optimizer" if memory.offload == "both" else "none"
        remedy = f"{key} decides block by block where activations go; nearest legal: {nearest}"
        yield LayoutError("memory.offload", memory.offload, remedy)


def _budget_problems(config: RunConfig) -> Iterator[LayoutError]:
    """What a plan counts is the same in each step, and one stage's."""
    budget, schedule = config.memory.budget_gib, config.schedule
    stages = config.parallel.pp * schedule.chunks
    reasons = {
        "tokens per expert, and their bytes, change from step to step; give memory.block_actions": (
            config.model.experts is not None
        ),
        "is planned for one stage a rank; set schedule.chunks to 1, or give memory.block_actions": schedule.chunks
        > 1,
        f"{schedule.kind} keeps inputs for a second backward, which no plan counts; set schedule.kind to 1f1b": (
            SCHEDULES[schedule.kind].splits_backward and stages > 1
        ),
        "blocks that gather again keep another size; set parallel.tp_regather to false": config.parallel.tp_regather,
    }
    for remedy, applies in reasons.items():
        if applies:
            yield LayoutError(_BUDGET, budget, remedy)
