"""The calls of a step as packed CommSample records.

Most calls equal one of an earlier step but for their times, so what is the same is packed once: a tensor-parallel
step has hundreds of calls.

A call that is waited for at once ends when its caller goes on. The end of a call issued earlier is noted by a thread
of the backend, before the main thread wakes, on busy cores by milliseconds. That stretch is counted as a wait for
this call.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from profilers.records.codec import Encoder, fields_of, record_struct
from profilers.records.schema import CommSample
from profilers.steps.resolve import StepSeconds

#: Operation, group, dtype, bytes, bytes that a rank sends or None, algorithm or None.
Known = tuple[str, Any, torch.dtype | None, int, int | None, str | None]
#: Kinds of call that are kept: uneven exchanges make new ones at every step.
_MOST_KINDS = 4_096
_LAYOUT = fields_of(CommSample)
_NAMES = [field.name for field in _LAYOUT]
_STEP, _TIMES = _NAMES.index("step"), _NAMES.index("start_unix")
assert _STEP == 0
assert _NAMES[_TIMES : _TIMES + 3] == ["start_unix", "seconds", "exposed_seconds"]
_begin = attrgetter("begin")
_pack = record_struct(_LAYOUT).pack
_UNKNOWN = ~(1 << _TIMES + 1 | 1 << _TIMES + 2)


class Kind:
    """What calls have in common: operation, group, dtype, bytes, what a rank sends if bytes do not tell, algorithm."""

    __slots__ = ("known", "packed")

    def __init__(self, first_call: Known) -> None:
        self.known = first_call
        #: Mask, and packed values before and after the times; from its first record on.
        self.packed: tuple[int, list[Any], list[Any]] | None = None


class Kinds(dict[Known, Kind]):
    """Each kind once. Asked before a wait, so that after it little is left to do."""

    def __missing__(self, first_call: Known) -> Kind:
        if len(self) >= _MOST_KINDS:
            self.clear()
        kind = self[first_call] = Kind(first_call)
        return kind


class TimedCall(NamedTuple):
    """A call that was issued: ``begin`` in seconds since its step began; without an end it has no seconds."""

    kind: Kind
    begin: float
    seconds: float | None
    exposed: float | None


class CallEncoder:
    """Packs the calls of one rank; ``place`` gives the axis and the size of a group."""

    def __init__(self, place: Callable[[Any], tuple[str, int]]) -> None:
        self._place = place
        self._encoder: Encoder | None = None

    def encode(self, times: StepSeconds, issued: list[TimedCall], names: Mapping[str, int]) -> bytes:
        """Records of a step's calls by their begin; ``names`` as for ``Encoder``, and always the same.

        Calls that were waited for at once are exposed as a whole.
        """
        step, origin, parts = times.step, times.start_unix, []
        for begin, end, kind in times.waits:
            if kind is None:
                continue
            mask, before, after = kind.packed or self._learn(kind, names)
            if end is None:
                parts.append(_pack(mask & _UNKNOWN, step, *before, origin + begin, 0.0, 0.0, *after))
                continue
            seconds = end - begin
            parts.append(_pack(mask, step, *before, origin + begin, seconds, seconds, *after))
        if issued:
            begins = [begin for begin, _, kind in times.waits if kind is not None]
            for call in sorted(issued, key=_begin, reverse=True):
                parts.insert(bisect_right(begins, call.begin), self._encode_issued(call, times, names))
        return b"".join(parts)

    def _encode_issued(self, call: TimedCall, times: StepSeconds, names: Mapping[str, int]) -> bytes:
        mask, before, after = call.kind.packed or self._learn(call.kind, names)
        start = times.start_unix + call.begin
        if call.seconds is None:
            return _pack(mask & _UNKNOWN, times.step, *before, start, 0.0, 0.0, *after)
        return _pack(mask, times.step, *before, start, call.seconds, call.exposed, *after)

    def _learn(self, kind: Kind, names: Mapping[str, int]) -> tuple[int, list[Any], list[Any]]:
        if self._encoder is None:
            self._encoder = Encoder(CommSample, names)
        operation, group, dtype, size, sent, algorithm = kind.known
        axis, ranks = self._place(group)
        record = CommSample(
            0, operation, axis, _dtype_name(dtype), ranks, size, 0.0, 0.0, 0.0, sent, algorithm
        )
        mask, *values = self._encoder.values(record)
        kind.packed = mask, values[1:_TIMES], values[_TIMES + 3 :]
        return kind.packed


@lru_cache
def _dtype_name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.") if dtype else ""


Span = tuple[float, float]


def extend_to_noticed(calls: list[TimedCall], waits: Iterable[tuple[float, float, list[Span]]]) -> None:
    """Lengthen in place, for each wait, the last call to end in it: until the wait is over or the next one blocks.

    ``calls`` were issued and not waited for at once. ``waits`` are those that are no call: begin and end in seconds
    since the step's start, and the calls that block inside, in order.
    """
    for begin, end, blocking in waits:
        ended = [
            (call.begin + call.seconds, index)
            for index, call in enumerate(calls)
            if call.seconds is not None and begin <= call.begin + call.seconds < end
        ]
        if ended:
            end_seconds, index = max(ended)
            call, extension = calls[index], _until(end_seconds, end, blocking) - end_seconds
            assert call.seconds is not None
            assert call.exposed is not None
            calls[index] = call._replace(seconds=call.seconds + extension, exposed=call.exposed + extension)


def _until(seconds: float, wait_end: float, blocking: list[Span]) -> float:
    """``seconds`` itself inside a call that blocks: the wait is for that one."""
    for begin, end in blocking:
        if seconds < end:
            return max(seconds, begin)
    return wait_end
