"""Which parts of a bucket are compressed together, and which are left alone because nothing would be gained. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from engine.compression.interface import Content, Part
from engine.config.compression import Settings
from engine.config.compression_methods import METHODS, Parameter, Value

_AS_ASKED = "left alone as asked"


@dataclass(frozen=True, slots=True)
class Run:
    """A part, or ``shared`` ones that lie next to each other: they are coded as one."""

    start: int
    stop: int
    value: Value
    parts: tuple[Part, ...]
    shared: bool = True

    @property
    def count(self) -> int:
        """Number of values."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Dealt:
    """A bucket's runs; the ranges [start, stop) that are sent as they are; and parts left alone with the reason."""

    runs: tuple[Run, ...]
    plain: tuple[tuple[int, int], ...]
    left_alone: dict[str, str]

    @property
    def plain_count(self) -> int:
        """Values that are sent as they are."""
        return sum(stop - start for start, stop in self.plain)


def dealt(content: Content, settings: Settings) -> Dealt:
    """Every value of the bucket is in one run or in one plain range; padding behind the last part in neither.

    Neighbours without a value of their own are one run, of which a method picks what it sends wherever it lies.
    """
    runs: list[Run] = []
    plain: list[tuple[int, int]] = []
    alone: dict[str, str] = {}
    for part in content.parts:
        reason = "" if settings.method == "none" else why_alone(part, settings)
        if reason:
            alone[part.name] = reason
        if reason is not None:
            _extend(plain, part)
            continue
        value = settings.value_of(part.name)
        shared = not settings.gives(part.name)
        if shared and runs and runs[-1].shared and runs[-1].stop == part.start:
            runs[-1] = replace(runs[-1], stop=part.stop, parts=(*runs[-1].parts, part))
        else:
            runs.append(Run(part.start, part.stop, value, (part,), shared))
    return Dealt(tuple(runs), tuple(plain), alone)


def why_alone(part: Part, settings: Settings) -> str | None:
    """Why a part is sent as it is; None if it is compressed."""
    value = settings.value_of(part.name)
    if value is None:
        return _AS_ASKED
    parameter = Parameter(part.shape, float(value), settings.bucket_values)
    return METHODS[settings.method].why_alone(parameter) or None


def matrices(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """A parameter as (number of matrices, rows, columns): the last two dimensions are a matrix's."""
    return math.prod(shape[:-2]), shape[-2], shape[-1]


def _extend(ranges: list[tuple[int, int]], part: Part) -> None:
    if ranges and ranges[-1][1] == part.start:
        ranges[-1] = ranges[-1][0], part.stop
    else:
        ranges.append((part.start, part.stop))
