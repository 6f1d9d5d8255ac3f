"""The interface of gradient compression, and what a compressor is given: a bucket, its parts, and what it sends."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.comm.channel import Waitable
from engine.compression.randomness import Draws
from engine.config.compression import Settings


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


#: Yields what it waits for, and goes on when that is through. Nothing runs on another thread: with several buckets
#: under way every rank issues the same collectives in the same order.
Reduction = Generator[Waitable, None, None]


class Compressor(Protocol):
    """Averages gradient buckets over a group; every rank reduces the same buckets in the same order."""

    def reduce(self, content: Content) -> Reduction:
        """Average ``content.flat`` in place: the first collective is under way at the first yield, and after the last
        one the average is there, the same bits on every rank.
        """

    def is_idle(self, content: Content) -> bool:
        """Whether at this step a bucket goes as it is, and nothing that was left out is to go with it."""

    def messages(self, content: Content) -> list[Message]:
        """What is sent for a bucket once compression has started, by formula."""

    def memory(self, content: Content) -> Tensor | None:
        """What this rank adds to the bucket's next gradient, like ``flat``; a checkpoint saves it and loads into it."""

    def kept(self, content: Content) -> list[Kept]:
        """What else it carries to the next step; a checkpoint saves and loads these too."""

    def left_alone(self, content: Content) -> dict[str, str]:
        """Parts that are sent as they are though a method is chosen, and why."""

    def use(self, settings: Settings) -> None:
        """Go on with other settings, between steps. What was left out so far is kept, or sent with the next step."""

    def move(self, before: Sequence[Content], after: Sequence[Content]) -> None:
        """Between steps: the same parts lie in other buckets from now on; what was left out of them goes with them."""


class Method(Protocol):
    """How the runs of one bucket are sent. One object a bucket: it may keep buffers."""

    def exchange(self, values: Tensor, flat: Tensor, draws: Draws) -> Reduction:
        """Average the runs of ``values`` into those of ``flat`` (both fp32 [n]; they may be the same tensor).

        What this rank did not send stays in ``values``, if it is not ``flat``.
        """

    def messages(self) -> list[Message]:
        """What is sent, by formula."""

    def kept(self) -> list[Kept]:
        """What it carries to the next step."""

    def fold(self, memory: Tensor) -> None:
        """Before it is given up: add what it keeps of this rank's errors to ``memory``, like ``flat``."""
