"""What a compression method implements and what it is given: a bucket, its parts, and the group that they go over."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm import gloo_exchange
from engine.comm.channel import Group, Waitable, all_gather_single, exchange_call
from engine.compression.randomness import RandomStreams
from engine.config.compression import Settings
from engine.config.methods.compression_methods import COMPRESSION_METHODS, Parameter, Value
from profilers import torch_private
from profilers.collectives.recorder import active_recorder
from profilers.records.operations import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL


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
class MethodState:
    """What a compressor carries from step to step for one part, beside its error memory; ``values`` are flat fp32, and
    a resumed run finds in them what was saved. ``kind`` is the method's own word for it, and part of its name there.

    Without a ``shape`` it has a value for each of the part's elements from ``first`` on: the same on all ranks that
    carry it, or, if ``differs_by_rank``, each rank's own, which another number of ranks cannot take up. With a
    ``shape`` it belongs to the whole part and is the same on every rank; a method that is resumed with another shape
    than the saved one goes on from what it began with.
    """

    part: Part
    kind: str
    values: Tensor
    first: int = 0
    shape: tuple[int, ...] | None = None
    differs_by_rank: bool = False

    def __post_init__(self) -> None:
        """What differs by rank is saved by element."""
        assert self.shape is None or not self.differs_by_rank, f"{self.kind} has a shape and differs by rank"


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


class Method(Protocol):
    """How the spans of one bucket are sent. One object a bucket: it may keep buffers. Methods derive from this class;
    those that carry something to the next step say what, and what becomes of it.
    """

    def exchange(self, values: Tensor, flat: Tensor, streams: RandomStreams) -> Reduction:
        """Average the spans of ``values`` into those of ``flat`` (both fp32 [n]; they may be the same tensor).

        What this rank did not send stays in ``values``, if it is not ``flat``.
        """

    def messages(self) -> list[Message]:
        """What is sent, by formula."""

    def state(self) -> list[MethodState]:
        """What it carries to the next step: nothing."""
        return []

    def merge_residual_into(self, memory: Tensor) -> None:
        """Before it is given up: add what it keeps of this rank's errors to the error ``memory``, like ``flat``."""
        return None


class LayerErrors(Protocol):
    """What a method that plans choose values for has besides, under the name that its entry gives."""

    def __call__(
        self, gradient: Tensor, shape: tuple[int, ...], settings: Settings, values: Sequence[Value]
    ) -> list[float]:
        """The Frobenius norm of what each value would lose of a layer's flat fp32 ``gradient`` [n] of ``shape``."""


_AS_ASKED = "left alone as asked"


@dataclass(frozen=True, slots=True)
class CodedSpan:
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
class Partition:
    """A bucket's spans; the ranges [start, stop) that are sent as they are; and parts left alone with the reason."""

    spans: tuple[CodedSpan, ...]
    plain: tuple[tuple[int, int], ...]
    uncompressed: dict[str, str]

    @property
    def plain_count(self) -> int:
        """Values that are sent as they are."""
        return sum(stop - start for start, stop in self.plain)


def partition_of(content: Content, settings: Settings) -> Partition:
    """Every value of the bucket is in one span or in one plain range; padding behind the last part in neither.

    Neighbours without a value of their own are one span, of which a method picks what it sends wherever it lies.
    """
    spans: list[CodedSpan] = []
    plain: list[tuple[int, int]] = []
    alone: dict[str, str] = {}
    for part in content.parts:
        reason = "" if settings.method == "none" else why_uncompressed(part, settings)
        if reason:
            alone[part.name] = reason
        if reason is not None:
            _extend(plain, part)
            continue
        value = settings.value_of(part.name)
        shared = not settings.gives(part.name)
        if shared and spans and spans[-1].shared and spans[-1].stop == part.start:
            spans[-1] = replace(spans[-1], stop=part.stop, parts=(*spans[-1].parts, part))
        else:
            spans.append(CodedSpan(part.start, part.stop, value, (part,), shared))
    return Partition(tuple(spans), tuple(plain), alone)


def why_uncompressed(part: Part, settings: Settings) -> str | None:
    """Why a part is sent as it is; None if it is compressed."""
    value = settings.value_of(part.name)
    if value is None:
        return _AS_ASKED
    parameter = Parameter(part.shape, float(value), settings.parameters)
    return COMPRESSION_METHODS[settings.method].why_uncompressed(parameter) or None


def matrices(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """A parameter as (number of matrices, rows, columns): the last two dimensions are a matrix's."""
    return math.prod(shape[:-2]), shape[-2], shape[-1]


def _extend(ranges: list[tuple[int, int]], part: Part) -> None:
    if ranges and ranges[-1][1] == part.start:
        ranges[-1] = ranges[-1][0], part.stop
    else:
        ranges.append((part.start, part.stop))


class Link:
    """Each call starts one collective of the backend."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self._group, self.size, self.rank, self._device = group, group.size(), group.rank(), device

    @cached_property
    def _gloo(self) -> Any:
        """Looked up at the first call: a dry run has groups that carry no meta tensors."""
        backend = torch_private.backend_of(self._group, self._device)
        return backend if backend.name() == "gloo" else None

    def all_reduce(self, x: Tensor) -> Waitable:
        """The sum over ranks, in place."""
        work: Waitable = dist.all_reduce(x, group=self._group, async_op=True)
        return work

    def all_gather(self, out: Tensor, x: Tensor) -> Waitable:
        """``x`` [n] of every rank into ``out`` [size * n]."""
        work: Waitable = all_gather_single(out, x, group=self._group, async_op=True)
        return work

    def all_to_all(
        self, out: Tensor, x: Tensor, receive: list[int] | None = None, send: list[int] | None = None
    ) -> Waitable:
        """Parts of ``x`` to the ranks in order, and theirs into ``out``; as many elements as the lists say, or equal
        parts. ``x`` is equally long on all ranks.
        """
        if self._gloo is None or x.nbytes < self.size * gloo_exchange.LARGE:
            work: Waitable = dist.all_to_all_single(out, x, receive, send, group=self._group, async_op=True)
            return work
        recorder = active_recorder()
        sizes = receive or (), send or ()
        call = recorder.issue(exchange_call(out, x, *sizes), self._group) if recorder else None
        return gloo_exchange.start(self._gloo, out, x, *sizes, call)

    def reduce_message(self, count: int, element_bytes: int) -> Message:
        """An all-reduce of so many elements."""
        return Message(ALL_REDUCE.name, count * element_bytes)

    def gather_message(self, bytes_: int) -> Message:
        """An all-gather of so many bytes from each rank."""
        return Message(ALL_GATHER.name, self.size * bytes_)

    def exchange_message(self, bytes_: int) -> Message:
        """An all-to-all of so many bytes to each rank."""
        return Message(ALL_TO_ALL.name, self.size * bytes_)


@dataclass(frozen=True, slots=True)
class MethodInput:
    """What the ``Method`` of one bucket is made of.

    ``carried`` is for tensors that outlive the method itself, which is made anew when settings are turned or parts move
    to other buckets; by (kind, name of the part), as ``MethodState`` has them. ``one_way``: a rank needs the average of
    its own slice of the bucket alone.
    """

    link: Link
    settings: Settings
    content: Content
    partition: Partition
    streams: RandomStreams
    carried: dict[tuple[str, str], Tensor]
    one_way: bool
