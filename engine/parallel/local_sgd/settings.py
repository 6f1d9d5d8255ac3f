"""The settings of local SGD, with values that depend on the method filled in, and the memory it needs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.config.sections import Outer

#: Keys that have to be as they were where a run continues one that had an outer loop.
SAME = (
    *(f"outer.{name}" for name in ("method", "replicas", "variant", "gap", "fragments")),
    *(f"parallel.{name}" for name in ("dp", "tp", "pp", "cp", "ep", "zero_stage", "shard_ranks")),
)
Gap = Literal["none", "scalar", "tensor", "element"]
Variant = Literal["paper", "delayed", "keep_local"]

#: DiLoCo's outer learning rate (arXiv 2311.08105), and the one that streaming DiLoCo was tuned to (arXiv 2501.18512).
_RATES = {"diloco": 0.7, "streaming": 0.4}
#: Nesterov momentum of both.
_NESTEROV_MOMENTUM = 0.9
#: CO2's momentum by number of ranks: up to so many of them; as its public code sets it where nobody does.
_CO2_MOMENTA = ((16, 0.0), (32, 0.2), (64, 0.5))
_CO2_MOST = 0.6


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything but the period, which may change while a run goes."""

    method: str
    learning_rate: float
    momentum: float
    clip: float | None
    gap: Gap
    variant: Variant
    fragments: int
    overlap: int
    mixing: float

    @property
    def only_averages(self) -> bool:
        """Whether a round ends with the mean itself: there is no anchor then, and no momentum."""
        return self.method == "local"


def settings_of(config: RunConfig) -> Settings:
    """The settings of a configuration whose method is not none."""
    outer = config.outer
    streams = outer.method == "streaming"
    return Settings(
        outer.method,
        _RATES.get(outer.method, 1.0) if outer.learning_rate is None else outer.learning_rate,
        _momentum(outer, layout_of(config).world_size) if outer.momentum is None else outer.momentum,
        outer.clip,
        outer.gap,
        outer.variant,
        outer.fragments if streams else 1,
        outer.overlap if streams else 0,
        outer.mixing if streams else 0.0,
    )


def _momentum(outer: Outer, ranks: int) -> float:
    if outer.method == "co2":
        return next((momentum for most, momentum in _CO2_MOMENTA if ranks <= most), _CO2_MOST)
    return _NESTEROV_MOMENTUM if outer.method in _RATES else 0.0


_FP32_BYTES = 4
#: Vectors that an outer step works on; with ZeRO each replica has its part of them.
_STEPPED = {"local": 0, "diloco": 2, "streaming": 2, "co2": 3}


def outer_bytes(config: RunConfig, elements: int) -> int:
    """Of a rank that updates so many elements: what is sent, what an outer step works on, and where a round began."""
    outer, layout = config.outer, layout_of(config)
    if outer.method == "none":
        return 0
    sharers = layout.replicas if layout.zero_stage else 1
    whole = 1 + (outer.method == "co2" and outer.variant == "keep_local")
    return _FP32_BYTES * (whole * elements + _STEPPED[outer.method] * -(-elements // sharers))
