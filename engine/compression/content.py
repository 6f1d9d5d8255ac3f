"""What a compressor is given: one gradient bucket, the parts it is made of, and what it sends for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Part:
    """One parameter's gradient: the values ``start`` to ``stop`` of its bucket, in the parameter's ``shape``."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def count(self) -> int:
        """Number of values."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Content:
    """A bucket: the same index and parts on every rank of a group, and this rank's ``flat`` fp32 [n]."""

    index: int
    flat: Tensor
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """One collective and the bytes S of its payload, counted as nccl-tests does (doc/PERFORMANCE.md)."""

    operation: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What a compressor carries from step to step for one part, beside its error memory; ``values`` are flat.

    ``mean`` ones belong to the part's elements from ``first`` on; a ``factor`` of ``shape`` belongs to the whole part.
    """

    part: Part
    kind: str
    values: Tensor
    first: int = 0
    shape: tuple[int, ...] | None = None


def content_of(index: int, flat: Tensor, named: dict[str, tuple[int, ...]]) -> Content:
    """The bucket that holds tensors of these shapes one after the other."""
    parts, start = [], 0
    for name, shape in named.items():
        stop = start + math.prod(shape)
        parts.append(Part(name, shape, start, stop))
        start = stop
    return Content(index, flat, tuple(parts))
