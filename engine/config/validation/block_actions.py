"""The rules of what becomes of each block's activations, given one by one or planned for a budget. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import LayoutError, several
from engine.config.knobs.facts import Context
from engine.config.run_config import RunConfig
from engine.config.validation.refusals import refused_settings
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
        key = _ACTIONS if budget is None else _BUDGET
        for setting in refused_settings(config, Context.BLOCK_ACTIONS):
            yield LayoutError(setting.key, setting.value, f"{key} {setting.why}; {setting.remedy}")
    if budget is not None:
        yield from _budget_problems(config)


def _budget_problems(config: RunConfig) -> Iterator[LayoutError]:
    """What a plan counts is the same in each step, and one stage's."""
    budget, schedule = config.memory.budget_gib, config.schedule
    stages = config.parallel.pp * schedule.chunks
    for setting in refused_settings(config, Context.ACTIVATION_BUDGET):
        yield LayoutError(
            _BUDGET, budget, f"{setting.why}; {setting.named_remedy}, or give memory.block_actions"
        )
    if SCHEDULES[schedule.kind].splits_backward and stages > 1:
        why = f"{schedule.kind} keeps inputs for a second backward, which no plan counts"
        yield LayoutError(_BUDGET, budget, f"{why}; set schedule.kind to 1f1b")
