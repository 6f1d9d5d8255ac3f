"""How points look to a sampler, and back: layouts as exponents, ordered numbers as ranks, the rest as categories."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from engine.config.knobs.catalogue import facts_of
from tuning.space.knobs import Knob
from tuning.space.points import Point
from tuning.space.space import Space

LAYOUT = "layout"
EXPONENT = "log2_"
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
        free = self.space.free_knobs
        return (*self._layout_parameters(), *(_parameter(knob) for knob in free if _varies(knob)))

    def _layout_parameters(self) -> list[Parameter]:
        layouts = self.space.layouts
        if len(layouts) < 2:
            return []
        if not self._exponents:
            return [Parameter(LAYOUT, "category", tuple(self._names))]
        parameters = []
        for index, key in enumerate(self.space.layout_keys):
            exponents = [degrees[index].bit_length() - 1 for degrees in layouts]
            if min(exponents) < max(exponents):
                parameters.append(
                    Parameter(_exponent(key), "integer", low=min(exponents), high=max(exponents))
                )
        return parameters

    @cached_property
    def _names(self) -> dict[str, tuple[int, ...]]:
        """Layouts by their names."""
        return {self._name(degrees): degrees for degrees in self.space.layouts}

    def _name(self, degrees: tuple[int, ...]) -> str:
        pairs = zip(self.space.layout_keys, degrees, strict=True)
        return " ".join(f"{_axis(key)}={degree}" for key, degree in pairs)

    @cached_property
    def _exponents(self) -> bool:
        """Whether every degree is a power of two."""
        return all(degree & (degree - 1) == 0 for degrees in self.space.layouts for degree in degrees)

    def decode(self, params: dict[str, Any]) -> Point | None:
        """The canonical point of what a sampler drew; None for a layout that the space does not have."""
        values = self._decode_layout(params)
        if not self.space.fits(values):
            return None
        point = self.space.point(values | {knob.key: _decode(knob, params) for knob in self.space.free_knobs})
        return point if self.space.degrees(point) in self.space.layouts else None

    def _decode_layout(self, params: dict[str, Any]) -> Point:
        keys, fallback = self.space.layout_keys, self.space.layouts[0]
        if LAYOUT in params:
            return dict(zip(keys, self._names[params[LAYOUT]], strict=True))
        return {
            key: 1 << int(params[_exponent(key)]) if _exponent(key) in params else degree
            for key, degree in zip(keys, fallback, strict=True)
        }

    def encode(self, point: Point) -> dict[str, Any] | None:
        """What a sampler would have drawn for a point; None if it cannot draw this point."""
        point = self.space.canonical_point(point)  # an older version may have called it by another name
        if self.space.degrees(point) not in self.space.layouts or self.space.why_outside(point):
            return None
        params = self._encode(point)
        return params if self.decode(params) == point else None

    def distance(self, first: dict[str, Any], second: dict[str, Any]) -> float:
        """How unlike two draws are, summed over what both have: 1 for another category, else the part of the range."""
        both = (
            parameter for parameter in self.parameters if parameter.name in first and parameter.name in second
        )
        return sum(
            _parameter_distance(parameter, first[parameter.name], second[parameter.name])
            for parameter in both
        )

    def _encode(self, point: Point) -> dict[str, Any]:
        params: dict[str, Any] = {}
        exponents = {_exponent(key): point[key].bit_length() - 1 for key in self.space.layout_keys}
        for parameter in self.parameters:
            if parameter.name == LAYOUT:
                params[LAYOUT] = self._name(self.space.degrees(point))
            elif parameter.name in exponents:
                params[parameter.name] = exponents[parameter.name]
            else:
                knob = self.space.by_key[_key(parameter.name)]
                params[parameter.name] = _encode(knob, point[knob.key])
        return params


def _parameter_distance(parameter: Parameter, first: Any, second: Any) -> float:
    if parameter.kind == "category":
        return float(first != second)
    low, high = parameter.low, parameter.high
    if parameter.log:
        first, second, low, high = (math.log(value) for value in (first, second, low, high))
    return float(abs(first - second) / (high - low))


def _axis(key: str) -> str:
    return key.rpartition(".")[2]


def _exponent(key: str) -> str:
    return f"{EXPONENT}{_axis(key)}"


def _varies(knob: Knob) -> bool:
    return knob.is_range or len(knob.choices) > 1


def _is_ordered(knob: Knob) -> bool:
    is_degree = facts_of(knob.key).degree  # without a value it is all there are, the most
    values = [choice for choice in knob.choices if choice is not None or not is_degree]
    numbers = all(isinstance(choice, int | float) and not isinstance(choice, bool) for choice in values)
    return numbers and len(knob.choices) >= ORDERED_CHOICES


def _sorted_choices(knob: Knob) -> list[Any]:
    return sorted(knob.choices, key=_size)


def _size(value: float | None) -> float:
    return math.inf if value is None else value


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
        return _sorted_choices(knob)[int(params[_parameter(knob).name])]
    return params[knob.key]


def _encode(knob: Knob, value: Any) -> Any:
    """A knob that does not act may stand outside its values; then the nearest one stands for it."""
    if knob.is_range:
        low, high = knob.grid()[0], knob.grid()[-1]
        return min(max(value, low), high)
    nearest = value if value in knob.choices else _nearest(knob, value)
    return _sorted_choices(knob).index(nearest) if _is_ordered(knob) else nearest


def _nearest(knob: Knob, value: Any) -> Any:
    if not _is_ordered(knob):
        return knob.choices[0]
    if value is None:
        return _sorted_choices(knob)[-1]
    return min(knob.choices, key=lambda choice: math.fabs(_size(choice) - value))
