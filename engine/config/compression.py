"""How gradients are compressed: one method with a value for each layer, and plans that choose these values. Pure.

Settings are frozen and replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from engine.config.methods.compression_methods import COMPRESSION_METHODS, Parameters, Value, WireInputs
from engine.config.sections import Compression


@dataclass(frozen=True)
class Settings:
    """One method for all parts: its usual ``value``, and others by the name of a part or a glob of names.

    A name comes before globs, and the first glob that fits before others. ``error_feedback``: what was not sent is
    added to the next gradient. Until ``start_step`` everything is sent as it is. ``parameters`` are the fields that the
    method's entry names.
    """

    method: str
    value: Value = None
    values: Mapping[str, Value] = field(default_factory=dict)
    stochastic: bool = False
    error_feedback: bool = True
    start_step: int = 0
    parameters: Parameters = field(default_factory=dict)

    def value_of(self, name: str) -> Value:
        """The value for a part."""
        if name in self.values:
            return self.values[name]
        return next((value for glob, value in self.values.items() if fnmatchcase(name, glob)), self.value)

    def gives(self, name: str) -> bool:
        """Whether a part has a value of its own, by its name or a glob."""
        return any(fnmatchcase(name, glob) for glob in self.values)

    def wire_inputs(self, ranks: int, factors: float = 0.0) -> WireInputs:
        """What its bytes depend on where so many ranks share a gradient; ``factors`` as ``WireInputs`` has them."""
        return WireInputs(float(self.value or 0), ranks, factors, self.parameters)


def settings_of(config: Compression) -> Settings:
    """The settings that a configuration asks for.

    Stochastic rounding has no bias but twice the error; fed back, errors have no bias to begin with.
    """
    feeds_back = keeps_errors(config.method, config.error_feedback)
    fields = () if config.method == "none" else COMPRESSION_METHODS[config.method].fields
    return Settings(
        config.method,
        usual_value(config),
        {glob: None if value == "none" else value for glob, value in config.layers.items()},
        not feeds_back if config.stochastic is None else config.stochastic,
        feeds_back,
        config.start_step,
        {name: getattr(config, name) for name in fields},
    )


def usual_value(config: Compression) -> Value:
    """The value of parts that have none of their own: a ratio, bits, or a rank."""
    if config.method == "none":
        return None
    value = COMPRESSION_METHODS[config.method].value
    return value if isinstance(value, int) else getattr(config, value)


def keeps_errors(method: str, error_feedback: bool | None) -> bool:
    """Whether what was not sent is added to the next gradient; without an answer the method decides.

    One that is gone since a checkpoint named it counts as most: it did.
    """
    if method == "none":
        return False
    if error_feedback is not None:
        return error_feedback
    return method not in COMPRESSION_METHODS or COMPRESSION_METHODS[method].uses_error_feedback


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
    """The values that a plan chooses from for each layer; the usual one is among them."""
    method = COMPRESSION_METHODS[settings.method]
    assert method.layer_value is not None, f"{settings.method} has no value to plan"
    assert settings.value is not None, f"{settings.method} has no usual value"
    return method.layer_value.candidates(settings.value)
