"""How gradients are compressed: one method with a value for each layer, and plans that choose these values. Pure.

Settings are frozen and replaced as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from engine.config.sections import Compression

#: A ratio, a number of bits or a rank; None leaves a part alone.
Value = float | int | None

#: Methods that round each value to another format and nothing more: their errors are small without a memory.
CASTS = ("fp16", "bf16")
#: Methods that do without a memory unless told otherwise. Random-k without one has no bias, and at small ratios learns
#: better than with errors that come back after 1 / ratio steps (benchmarks/results/communication_quality.md).
FORGETFUL = (*CASTS, "randomk")
#: Methods whose value is the share of the values that are sent.
SELECTING = ("topk", "randomk")
#: Methods with a scale for every ``bucket_values`` values.
SCALING = ("int8", "int4", "sign")
#: Methods that can send values to the rank that needs them alone.
ONE_WAY = ("int8", "int4")


@dataclass(frozen=True)
class Settings:
    """One method for all parts: its usual ``value``, and others by the name of a part or a glob of names.

    A name comes before globs, and the first glob that fits before others. ``error_feedback``: what was not sent is
    added to the next gradient. Until ``start_step`` everything is sent as it is.
    """

    method: str
    value: Value = None
    values: Mapping[str, Value] = field(default_factory=dict)
    bucket_values: int = 1024
    stochastic: bool = False
    error_feedback: bool = True
    start_step: int = 0

    def value_of(self, name: str) -> Value:
        """The value for a part."""
        if name in self.values:
            return self.values[name]
        return next((value for glob, value in self.values.items() if fnmatchcase(name, glob)), self.value)

    def gives(self, name: str) -> bool:
        """Whether a part has a value of its own, by its name or a glob."""
        return any(fnmatchcase(name, glob) for glob in self.values)


def settings_of(config: Compression) -> Settings:
    """The settings that a configuration asks for.

    Stochastic rounding has no bias but twice the error; fed back, errors have no bias to begin with.
    """
    feeds_back = keeps_errors(config.method, config.error_feedback)
    return Settings(
        config.method,
        usual_value(config),
        {glob: None if value == "none" else value for glob, value in config.layers.items()},
        config.bucket_values,
        not feeds_back if config.stochastic is None else config.stochastic,
        feeds_back,
        config.start_step,
    )


def usual_value(config: Compression) -> Value:
    """The value of parts that have none of their own: a ratio, bits, or a rank."""
    if config.method in SELECTING:
        return config.ratio
    return {"powersgd": config.rank, "int8": 8, "int4": 4, "sign": 1, "fp16": 16, "bf16": 16}.get(
        config.method
    )


def keeps_errors(method: str, error_feedback: bool | None) -> bool:
    """Whether what was not sent is added to the next gradient; without an answer all but the forgetful do so."""
    if method == "none":
        return False
    return method not in FORGETFUL if error_feedback is None else error_feedback


#: Methods whose value a plan chooses for each layer.
PLANNED = ("int8", "int4", "topk", "randomk", "powersgd")
#: Bits that integers can have.
MIN_BITS, MAX_BITS = 2, 8
#: Steps of a ratio between the half and the double, each 2^(1/8) of the last one.
_STEPS_OF_A_DOUBLING = 8


@dataclass(frozen=True)
class Plan:
    """``values`` of layers by name, chosen where ``default`` was the value of all under ``method``."""

    method: str = "none"
    default: Value = None
    values: Mapping[str, Value] = field(default_factory=dict)

    def fits(self, settings: Settings) -> bool:
        """Whether it was made for this method and default."""
        return (self.method, self.default) == (settings.method, settings.value)


NO_PLAN = Plan()


def settings_with(config: Compression, plan: Plan) -> Settings:
    """The settings that a configuration asks for, with a plan's values where it leaves them to the plan."""
    settings = settings_of(config)
    if config.plan == "none" or not plan.fits(settings):
        return settings
    free = {name: value for name, value in plan.values.items() if not settings.gives(name)}
    return replace(settings, values=free | dict(settings.values))


def candidates(settings: Settings) -> list[Value]:
    """From floor(default / 2) to ceil(2 * default), as the paper's authors do; ratios in steps of 2^(1/8).

    The default is one of them.
    """
    usual = settings.value
    assert usual is not None, f"{settings.method} has no value to plan"
    if settings.method in SELECTING:
        powers = range(-_STEPS_OF_A_DOUBLING, _STEPS_OF_A_DOUBLING + 1)
        ratios = [float(usual) * 2 ** (power / _STEPS_OF_A_DOUBLING) for power in powers]
        return list(dict.fromkeys(min(1.0, ratio) for ratio in ratios))
    low, high = max(1, math.floor(0.5 * usual)), math.ceil(2 * usual)
    if settings.method != "powersgd":
        low, high = max(low, MIN_BITS), min(high, MAX_BITS)
    return list(range(low, high + 1))
