"""How points look to a sampler, and back: layouts as exponents, ordered numbers as ranks, the rest as categories."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from tuning.knobs import Knob
from tuning.space import LAYOUT_KEYS, Point, Space

LAYOUT = "layout"
EXPONENTS = {"parallel.tp": "log2_tp", "parallel.pp": "log2_pp"}
#: From this many ordered numbers on, their order says more than their names.
ORDERED_CHOICES = 3


@dataclass(frozen=True, slots=True)
class Parameter:
    """One thing a sampler draws: from ``choices``, or between ``low`` and ``high``."""

    name: str
    kind: Literal["category", "integer", "number"]
    choices: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False


@dataclass(frozen=True)
class Encoding:
    """The sampler's parameters of a space. They never change inside a study."""

    space: Space

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Everything a sampler draws, in one fixed order."""
        free = [knob for knob in self.space.knobs if knob.key not in LAYOUT_KEYS]
        return (*self._layout_parameters(), *(_parameter(knob) for knob in free if _varies(knob)))

    def _layout_parameters(self) -> list[Parameter]:
        layouts = self.space.layouts
        if len(layouts) < 2:
            return []
        if not self._exponents:
            return [Parameter(LAYOUT, "category", tuple(_layout_name(*pair) for pair in layouts))]
        found = []
        for index, name in enumerate(EXPONENTS.values()):
            exponents = [pair[index].bit_length() - 1 for pair in layouts]
            if min(exponents) < max(exponents):
                found.append(Parameter(name, "integer", low=min(exponents), high=max(exponents)))
        return found

    @cached_property
    def _exponents(self) -> bool:
        """Whether every degree is a power of two."""
        return all(degree & (degree - 1) == 0 for pair in self.space.layouts for degree in pair)

    def decode(self, params: dict[str, Any]) -> Point | None:
        """The canonical point of what a sampler drew; None for a layout that the space does not have."""
        pair = self._decode_layout(params)
        if pair not in self.space.layouts:
            return None
        free = {knob.key: _decode(knob, params) for knob in self.space.knobs if knob.key not in LAYOUT_KEYS}
        return self.space.point(*pair, free)

    def _decode_layout(self, params: dict[str, Any]) -> tuple[int, int]:
        tp, pp = self.space.layouts[0]
        if LAYOUT in params:
            names = [_layout_name(*pair) for pair in self.space.layouts]
            return self.space.layouts[names.index(params[LAYOUT])]
        if "log2_tp" in params:
            tp = 1 << int(params["log2_tp"])
        if "log2_pp" in params:
            pp = 1 << int(params["log2_pp"])
        return tp, pp

    def encode(self, point: Point) -> dict[str, Any] | None:
        """What a sampler would have drawn for a point; None if it cannot draw this point."""
        pair = (point["parallel.tp"], point["parallel.pp"])
        if pair not in self.space.layouts or self.space.outside(point):
            return None
        params = self._encode(point, pair)
        return params if self.decode(params) == point else None

    def _encode(self, point: Point, pair: tuple[int, int]) -> dict[str, Any]:
        params: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.name == LAYOUT:
                params[LAYOUT] = _layout_name(*pair)
            elif parameter.name in EXPONENTS.values():
                params[parameter.name] = pair[list(EXPONENTS.values()).index(parameter.name)].bit_length() - 1
            else:
                knob = self.space.by_key[_key(parameter.name)]
                params[parameter.name] = _encode(knob, point[knob.key])
        return params


def _layout_name(tp: int, pp: int) -> str:
    return f"tp={tp} pp={pp}"


def _varies(knob: Knob) -> bool:
    return knob.is_range or len(knob.choices) > 1


def _is_ordered(knob: Knob) -> bool:
    numbers = all(isinstance(choice, int | float) and not isinstance(choice, bool) for choice in knob.choices)
    return numbers and len(knob.choices) >= ORDERED_CHOICES


def _parameter(knob: Knob) -> Parameter:
    if knob.low is not None and knob.high is not None:
        kind: Literal["integer", "number"] = "integer" if knob.integer else "number"
        return Parameter(knob.key, kind, low=knob.low, high=knob.high, log=knob.log)
    if _is_ordered(knob):
        return Parameter(f"rank of {knob.key}", "integer", low=0, high=len(knob.choices) - 1)
    return Parameter(knob.key, "category", knob.choices)


def _key(name: str) -> str:
    return name.removeprefix("rank of ")


def _decode(knob: Knob, params: dict[str, Any]) -> Any:
    if not _varies(knob):
        return knob.choices[0]
    if _is_ordered(knob):
        return sorted(knob.choices)[int(params[_parameter(knob).name])]
    return params[knob.key]


def _encode(knob: Knob, value: Any) -> Any:
    """A knob at rest may stand outside its values; then the nearest one stands for it."""
    if knob.is_range:
        low, high = knob.grid()[0], knob.grid()[-1]
        return min(max(value, low), high)
    known = value if value in knob.choices else _nearest(knob, value)
    return sorted(knob.choices).index(known) if _is_ordered(knob) else known


def _nearest(knob: Knob, value: Any) -> Any:
    if not _is_ordered(knob):
        return knob.choices[0]
    return min(knob.choices, key=lambda choice: math.fabs(choice - value))
