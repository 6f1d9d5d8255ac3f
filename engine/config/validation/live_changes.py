"""Keys of the configuration that may change while a run goes, and whether a change is legal here. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.config.errors import InputError, LayoutError
from engine.config.knobs.catalogue import facts_of, live_part, live_parts, why_at_start
from engine.config.knobs.facts import TRAINER
from engine.config.run_config import RunConfig
from engine.config.sections import KnobValues
from engine.config.validation import rules
from engine.schedules.registry import SCHEDULES

#: The kind of the event in which rank 0 tells of one changed value.
EVENT = "changed"
#: From this stage of ZeRO on, a rank keeps slices of its weights alone.
_SLICING_STAGE = 2


@dataclass(frozen=True, slots=True)
class Change:
    """One value."""

    key: str
    old: Any
    new: Any


def change_config(config: RunConfig, values: KnobValues) -> RunConfig:
    """The configuration with some values changed while its run goes.

    Raises:
        InputError: a key is unknown or not live, a value does not fit, or the whole is not legal for this layout.
    """
    after = config.with_values(values)
    for key, value in values.items():
        if key not in (live := live_keys(config)):
            why = f": {reason}" if (reason := why_at_start(key)) else ""
            remedy = f"is decided when a run starts{why}; while one goes these can be set: {', '.join(sorted(live))}"
            raise InputError(key, value, remedy)
    rules.check(after)
    for problem in problems(config, after):
        raise problem
    return after


def changes(before: RunConfig, after: RunConfig) -> list[Change]:
    """The live keys whose values differ."""
    keys = [key for key in live_keys(after) if key in live_keys(before)]
    both = [(key, value_of(before, key), value_of(after, key)) for key in keys]
    return [Change(key, old, new) for key, old, new in both if old != new]


def live_keys(config: RunConfig) -> list[str]:
    """What can be turned while a run goes: of a trainer that is not this project's its own values alone."""
    return [f"{TRAINER}.{name}" for name in config.trainer] or list(live_parts())


def value_of(config: RunConfig, key: str) -> Any:
    """The value of a live key."""
    section, name = key.split(".")
    return config.trainer[name] if section == TRAINER else config.value_of(key)


def parts(changes: list[Change]) -> list[str]:
    """The parts that changes turn, each once."""
    return list(dict.fromkeys(live_part(change.key) for change in changes))


def problems(before: RunConfig, after: RunConfig) -> Iterator[LayoutError]:
    """Why a run that has one configuration cannot be turned to another one; both are legal."""
    yield from _schedule_problems(before, after)
    yield from _sharding_problems(before, after)
    yield from _budget_problems(before, after)
    zero, size = after.parallel.zero_stage, after.overlap.bucket_mb
    if size == before.overlap.bucket_mb or not zero:
        return
    why = (
        "deals the optimizer's state out by bucket"
        if zero == 1
        else "reduces gradients block by block, without buckets"
    )
    yield LayoutError("overlap.bucket_mb", size, f"zero_stage {zero} {why}; start a new run with this size")


def _sharding_problems(before: RunConfig, after: RunConfig) -> Iterator[LayoutError]:
    """Slices stay where they are, and weights that are updated in host memory stay there."""
    old, new = before.parallel.zero_stage, after.parallel.zero_stage
    if old != new and min(old, new) < _SLICING_STAGE:
        why = f"cuts weights another way than stage {old}: only 2 and 3 turn into each other; start a new run with it"
        yield LayoutError("parallel.zero_stage", new, why)
    hosts = [config.memory.offload in ("optimizer", "both") for config in (before, after)]
    if hosts[0] != hosts[1]:
        why = "moves the weights that are updated to other memory; a run can turn only what becomes of activations"
        yield LayoutError("memory.offload", after.memory.offload, f"{why}; start a new run with it")


def _budget_problems(before: RunConfig, after: RunConfig) -> Iterator[LayoutError]:
    """A plan is made for the micro-batches that a run starts with."""
    if after.memory.budget_gib is None:
        return
    for key in live_keys(after):
        if facts_of(key).in_budget_plan and value_of(after, key) != value_of(before, key):
            why = "the plan for memory.budget_gib was made for the old value; start a new run with it"
            yield LayoutError(key, value_of(after, key), why)


def _schedule_problems(before: RunConfig, after: RunConfig) -> Iterator[LayoutError]:
    """Stages stay on their ranks; buckets of gradients are dealt for one kind of backward."""
    old, new = (SCHEDULES[config.schedule.kind] for config in (before, after))
    if old.placement != new.placement:
        why = f"deals stages to ranks another way than {before.schedule.kind}; start a new run with this schedule"
        yield LayoutError("schedule.kind", after.schedule.kind, why)
    elif old.splits_backward != new.splits_backward:
        why = f"and {before.schedule.kind} do not both split the backward; start a new run with this schedule"
        yield LayoutError("schedule.kind", after.schedule.kind, why)
