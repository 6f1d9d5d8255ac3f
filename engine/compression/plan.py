"""A plan of compression: a value for each layer, and which values a layer can have. Frozen, pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.compression.settings import SELECTING, Settings, Value, settings_of
from engine.sections import Compression

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
