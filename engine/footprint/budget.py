"""The budget of a rank's activations: what its stage holds besides its blocks, and the least that it can do with, by
formula. Pure.
"""

from __future__ import annotations

import math

from engine.config.errors import LayoutError
from engine.config.run_config import RunConfig
from engine.footprint import block_plan
from engine.footprint.activations import (
    INDEX_BYTES,
    Part,
    boundary_bytes,
    costs_of_block,
    head_bytes,
    sizes_of,
)
from engine.footprint.block_plan import StageOverhead
from engine.footprint.footprint import parts_of, plan_of
from engine.schedules.actions import Plan
from engine.schedules.simulate import peak_in_flight

#: For the numbers of a few bytes that formulas leave out: a mean's weight, a maximum.
_FEW = 64
#: Of the least budget that a refusal names.
_DIGITS = 6


def stage_surroundings(
    config: RunConfig, chosen: Plan, stage: int, turn_seconds: float = 0.0
) -> StageOverhead:
    """Of a rank with one stage. Where a schedule does other work between a forward and its backward, what the head
    leaves waits as blocks do.
    """
    part = parts_of(config, chosen)[stage]
    head = head_bytes(config) if part.is_last else 0
    waits = 0 if part.turns_at_once else head
    flying = math.ceil(peak_in_flight(chosen)[chosen.rank_of[stage]])
    # Tokens and targets of all of a step's micro-batches are there from its start.
    index_bytes = INDEX_BYTES * sizes_of(config).tokens * (chosen.micro_batches - flying)
    index_bytes *= part.is_first + part.is_last
    return StageOverhead(
        _boundary_bytes(config, part) + waits, head - waits, turn_seconds, flying, index_bytes
    )


def least_budget(config: RunConfig) -> int:
    """Bytes that every rank's activations fit in with some list of actions."""
    chosen, block = plan_of(config), costs_of_block(config)
    parts = parts_of(config, chosen)
    return max(
        block_plan.least_bytes([block] * part.layers, stage_surroundings(config, chosen, stage))
        for stage, part in enumerate(parts)
    )


def check_budget(config: RunConfig) -> None:
    """Nothing for a configuration that keeps every other rule, and asks for a budget that can be kept, or for none.

    Raises:
        LayoutError: no list of actions holds so little.
    """
    budget = config.memory.budget_gib
    if budget is not None and (least := least_budget(config)) > budget * 2**30:
        raise too_small(budget, least)


def too_small(budget: float, least: int) -> LayoutError:
    """The refusal, with the least that would do."""
    gib = least / 2**30
    unit = 10.0 ** (math.floor(math.log10(gib)) - _DIGITS + 1)
    text = f"{math.ceil(gib / unit) * unit:.{_DIGITS}g}"  # upwards: what is named has to do
    remedy = f"whatever becomes of its blocks, a rank holds more activations; the least that would do here is {text}"
    return LayoutError("memory.budget_gib", budget, remedy)


def _boundary_bytes(config: RunConfig, part: Part) -> int:
    """With what others hold as well: the input and the output of a stage, the mask of documents, and the targets,
    which outlive the head.
    """
    sizes = sizes_of(config)
    targets = INDEX_BYTES * sizes.tokens if part.is_last else 0
    return boundary_bytes(config, part, copied=True) + sizes.mask + targets + _FEW
