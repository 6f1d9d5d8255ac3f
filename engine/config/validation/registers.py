"""The rules for registers of a pipeline. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import LayoutError
from engine.config.layout import accumulation
from engine.config.run_config import RunConfig
from engine.schedules.credits import fewest
from engine.schedules.registry import KINDS, plan

_FIELD = "schedule.registers"


def register_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Every broken rule; of a schedule that is legal otherwise, ranks do not come to wait for each other for good."""
    schedule, ranks, micro_batches = config.schedule, config.parallel.pp, accumulation(config)
    if schedule.registers is None or ranks == 1 or micro_batches < 1:
        return
    if schedule.skip_share:
        yield LayoutError(
            _FIELD, schedule.registers, "micro-batches that skip stages have none; leave it out"
        )
        return
    if KINDS[schedule.kind].chunks_problem(schedule.chunks):
        return
    try:
        least = fewest(plan(schedule.kind, ranks, schedule.chunks, micro_batches))
    except ValueError:  # the schedule's own rules tell what it cannot use
        return
    if schedule.registers < least:
        remedy = f"ranks would wait for each other for good: {schedule.kind} needs at least {least} here"
        yield LayoutError(_FIELD, schedule.registers, remedy)
