"""How many steps a trial has: those that the study asks for, or more where whole rounds of local SGD need them. Pure.

A trial's rate is of whole rounds. Where the asked steps hold fewer than ``ROUNDS`` of them the trial is lengthened, up
to ``LONGEST`` times the asked steps; a point of which not even one round fits into that cannot be measured.
"""

from __future__ import annotations

from engine.config.layout import least_steps, round_steps
from engine.config.run_config import RunConfig

#: So few rounds have an interval.
ROUNDS = 3
#: A trial may have so many times the steps that the study asks for.
LONGEST = 8


def problem(config: RunConfig) -> str | None:
    """What ``outer.period`` would need for one round to be measured; None if it can be. ``config`` has the study's
    ``train.steps``.
    """
    if config.train.seconds is not None:
        return None
    most, needed = LONGEST * config.train.steps, least_steps(config, 1)
    if needed <= most:
        return None
    return (
        f"needs {needed:,} steps to measure one round of {config.outer.method}, and a trial of "
        f"{config.train.steps:,} steps is lengthened to {most:,} at the most: raise base.train.steps or lower "
        "outer.period"
    )


def window(whole: RunConfig, steps: int) -> RunConfig:
    """The first ``steps`` of a trial, for its speed alone: nothing is said of its loss."""
    return whole.with_values(
        {
            "train.steps": steps,
            "train.seconds": None,
            "train.validation_batches": 0,
            "train.validate_every": None,
        }
    )


def lengthen_config(config: RunConfig) -> RunConfig:
    """The configuration that runs: with the steps that ``ROUNDS`` whole rounds need, or as many rounds as fit.

    One with a time has the rounds that fit. The loss that is held against the baseline's is taken at the asked steps,
    so evaluation comes then, too.
    """
    train, most = config.train, LONGEST * config.train.steps
    if train.seconds is not None:
        return config
    rounds = next((count for count in range(ROUNDS, 0, -1) if least_steps(config, count) <= most), 0)
    if round_steps(config) == 1 or least_steps(config, rounds) <= train.steps:
        return config
    values: dict[str, int] = {"train.steps": least_steps(config, rounds)}
    if train.validation_batches and (train.validate_every is None or train.steps % train.validate_every):
        values["train.validate_every"] = train.steps
    return config.with_values(values)
