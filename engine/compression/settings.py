"""How gradients are compressed: one method, and its value for each part. Frozen; replaced as a whole. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from engine.sections import Compression

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
