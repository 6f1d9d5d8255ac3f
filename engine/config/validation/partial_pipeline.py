"""The rules of pipelines: micro-batches that leave out stages, and registers between stages. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import LayoutError, several
from engine.config.knobs.facts import Context
from engine.config.layout import accumulation
from engine.config.run_config import RunConfig
from engine.config.validation.refusals import refused_settings
from engine.schedules.credits import fewest
from engine.schedules.registry import SCHEDULES, plan
from engine.schedules.skip_pipe import LEAST_TRAINED, count_skips, most_skips

_FIELD = "schedule.skip_share"
_REGISTERS = "schedule.registers"


def skip_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Every broken rule; without a share nothing is left out."""
    schedule, share = config.schedule, config.schedule.skip_share
    if not share:
        return
    for setting in refused_settings(config, Context.SKIPPED_STAGES):
        yield LayoutError(setting.key, setting.value, f"{setting.why}; {setting.remedy}")
    if not SCHEDULES[schedule.kind].skips:
        fitting = " or ".join(name for name, kind in SCHEDULES.items() if kind.skips)
        yield LayoutError(
            _FIELD, share, f"{schedule.kind} has all stages; set schedule.kind to {fitting}, or this to 0"
        )
    yield from _share_problems(config.parallel.pp * schedule.chunks, accumulation(config), config)


def _share_problems(stages: int, micro_batches: int, config: RunConfig) -> Iterator[LayoutError]:
    """There is something to leave out, and every stage is trained enough."""
    share, most = config.schedule.skip_share, most_skips(stages, micro_batches)
    if config.parallel.pp == 1 or not most:
        text = f"pp={config.parallel.pp}, {several(stages, 'stages')} and {several(micro_batches, 'micro-batches')}"
        remedy = f"with {text} nothing can be left out: that takes pp of 2, 3 stages and 2 micro-batches; set it to 0"
        yield LayoutError(_FIELD, share, remedy)
        return
    visits = stages * micro_batches
    if count_skips(stages, micro_batches, share) > most:
        remedy = (
            f"a stage would be trained by less than {LEAST_TRAINED:.0%} of {micro_batches} micro-batches, "
            f"as neither the first nor the last of {stages} is left out; the most here is {most / visits:.4g}"
        )
        yield LayoutError(_FIELD, share, remedy)
    elif not count_skips(stages, micro_batches, share):
        remedy = f"is less than one of {visits} visits of stages; the least here is {1 / visits:.4g}, or 0"
        yield LayoutError(_FIELD, share, remedy)


def register_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Of registers: there is something that they bound, and of a schedule that is legal otherwise, ranks do not come to
    wait for each other for good.
    """
    schedule, ranks, micro_batches = config.schedule, config.parallel.pp, accumulation(config)
    if schedule.registers is None or micro_batches < 1:
        return
    if ranks == 1:
        remedy = "with pp=1 no stage sends to another rank; leave it out or raise pp"
        yield LayoutError(_REGISTERS, schedule.registers, remedy)
        return
    if schedule.skip_share:
        return  # refused with it
    if SCHEDULES[schedule.kind].chunks_problem(schedule.chunks):
        return
    try:
        least = fewest(plan(schedule.kind, ranks, schedule.chunks, micro_batches))
    except ValueError:  # the schedule's own rules tell what it cannot use
        return
    if schedule.registers < least:
        remedy = f"ranks would wait for each other for good: {schedule.kind} needs at least {least} here"
        yield LayoutError(_REGISTERS, schedule.registers, remedy)
