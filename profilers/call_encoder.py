"""Calls of a step as packed CommSample records.

Most calls equal one of an earlier step but for their times, so what is the same is packed once: a tensor-parallel step
has hundreds of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from profilers.codec import Encoder, fields_of, record_struct
from profilers.records import CommSample

#: Kinds of call that are kept: uneven exchanges make new ones at every step.
_MOST_KINDS = 4_096
_LAYOUT = fields_of(CommSample)
_NAMES = [field.name for field in _LAYOUT]
_STEP, _TIMES = _NAMES.index("step"), _NAMES.index("start_unix")
assert _STEP == 0
assert _NAMES[_TIMES : _TIMES + 3] == ["start_unix", "seconds", "exposed_seconds"]
_pack = record_struct(_LAYOUT).pack
_UNKNOWN = ~(1 << _TIMES + 1 | 1 << _TIMES + 2)


class Kind(NamedTuple):
    """What calls may have in common."""

    operation: str
    group: Any
    dtype: torch.dtype | None
    bytes: int
    sent_bytes: int | None
    algorithm: str | None


#: As a plain tuple where that saves time.
AnyKind = Kind | tuple[Any, ...]


class Timed(NamedTuple):
    """One call: ``begin`` in seconds since its step began; ``seconds`` of one that never ended are None."""

    kind: AnyKind
    begin: float
    seconds: float | None
    exposed: float | None


class CallEncoder:
    """Packs the calls of one rank; ``place`` gives the axis and the size of a group."""

    def __init__(self, place: Callable[[Any], tuple[str, int]]) -> None:
        self._place = place
        self._encoder: Encoder | None = None
        self._packed: dict[AnyKind, tuple[int, list[Any], list[Any]]] = {}

    def encode(self, calls: list[Timed], step: int, start_unix: float, names: Mapping[str, int]) -> bytes:
        """Their records in order; ``names`` as for ``Encoder``, and always the same."""
        packed, parts = self._packed, []
        for kind, begin, seconds, exposed in calls:
            mask, before, after = packed.get(kind) or self._learn(kind, names)
            start = start_unix + begin
            if seconds is None:
                parts.append(_pack(mask & _UNKNOWN, step, *before, start, 0.0, 0.0, *after))
            else:
                parts.append(_pack(mask, step, *before, start, seconds, exposed, *after))
        return b"".join(parts)

    def _learn(self, kind: AnyKind, names: Mapping[str, int]) -> tuple[int, list[Any], list[Any]]:
        if len(self._packed) >= _MOST_KINDS:
            self._packed.clear()
        if self._encoder is None:
            self._encoder = Encoder(CommSample, names)
        mask, *values = self._encoder.values(self._sample(kind))
        found = mask, values[1:_TIMES], values[_TIMES + 3 :]
        self._packed[kind] = found
        return found

    def _sample(self, kind: AnyKind) -> CommSample:
        operation, group, dtype, size, sent, algorithm = kind
        axis, ranks = self._place(group)
        return CommSample(0, operation, axis, _dtype_name(dtype), ranks, size, 0.0, 0.0, 0.0, sent, algorithm)


@lru_cache
def _dtype_name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.") if dtype else ""
