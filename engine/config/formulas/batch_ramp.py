"""The batch of each step of a run whose batch grows. Pure, without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator

from engine.config.run_config import RunConfig

#: What changes as a batch grows.
BATCH = "batch.global_batch"


def grows(config: RunConfig) -> bool:
    """Whether a run has steps with fewer sequences than its last ones."""
    return _levels(config) > 1


def batch_of(config: RunConfig, step: int) -> int:
    """Sequences of a step of the run, the first being 0: ``batch.ramp_from``, then twice, three times ... as many, in
    stretches of equal length, and ``batch.global_batch`` from ``batch.ramp_share`` of all steps on.
    """
    if not grows(config):
        return config.batch.global_batch
    assert config.batch.ramp_from is not None
    return config.batch.ramp_from * (1 + sum(start <= step for start in _starts(config)))


def sequences(config: RunConfig, first: int, last: int) -> int:
    """Of all steps from ``first`` to the one before ``last``."""
    if not grows(config):
        return config.batch.global_batch * max(0, last - first)
    assert config.batch.ramp_from is not None
    parts = sum(max(0, last - max(first, start)) for start in (first, *_starts(config)))
    return config.batch.ramp_from * parts


def sequences_of_run(config: RunConfig, first: int, steps: int) -> int:
    """Of all steps from ``first`` on of a run that has so many steps in all."""
    return sequences(_of_steps(config, steps), first, steps)


def steps_for(config: RunConfig, first: int, count: float) -> int:
    """How many steps in all a run has that from step ``first`` on takes at most ``count`` sequences more; its batch
    grows as that of a run of so many steps.
    """
    if not grows(config):
        return first + int(count // config.batch.global_batch)
    low, high = first, first + int(count) + 1  # a step takes one sequence or more
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sequences_of_run(config, first, middle) <= count else (low, middle)
    return low


def _levels(config: RunConfig) -> int:
    return config.batch.global_batch // (config.batch.ramp_from or config.batch.global_batch)


def _starts(config: RunConfig) -> Iterator[int]:
    """The first step of each larger batch."""
    larger, ramp = _levels(config) - 1, config.batch.ramp_share * config.train.steps
    return (math.ceil(level * ramp / larger) for level in range(1, larger + 1))


def _of_steps(config: RunConfig, steps: int) -> RunConfig:
    return config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})
