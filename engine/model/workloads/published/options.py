"""What options of a workload, and settings beside them, may be: said in one line before anything starts."""

from __future__ import annotations

from engine.config.errors import InputError
from engine.model.workload import StepSetting


def require_minimum(least: int, **options: object) -> None:
    """
    Raises:
        ValueError: an option is no whole number, or a smaller one.
    """
    for name, value in options.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name}={value!r} has to be a whole number of at least {least}")


def needs_adamw(setting: StepSetting, why: str) -> None:
    """A step of its own would silently leave another optimizer out.

    Raises:
        InputError: another one is asked for.
    """
    optimizer = setting.config.train.optimizer
    if optimizer != "adamw":
        raise InputError("train.optimizer", optimizer, f"{why}; leave it out")
