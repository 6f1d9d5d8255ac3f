"""int8 for what is not a gradient: gathered parameters (ZeRO++'s qwZ, arXiv 2306.10209), activations of an
all-to-all.

Rows of activations are sent in bf16, or in int8 with a scale for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engine.compression.interface import Message
from engine.compression.methods.row_codec import Integers, RowCodec

_WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class Slice:
    """One parameter in a rank's part of a message: its values, padding included; vectors go as they are."""

    count: int
    is_vector: bool


@dataclass(frozen=True, slots=True)
class _Place:
    start: int
    stop: int
    first: int
    last: int
    codec: RowCodec | None


class CoarseShards:
    """Each matrix in blocks of ``block`` values with a scale, rounded to the nearest; the slices themselves stay exact.

    All ranks compute with what they decode, the owner as well: they hold the same bits.
    """

    def __init__(self, slices: Sequence[Slice], ranks: int, block: int, dtype: torch.dtype) -> None:
        self._ranks, self._places = ranks, list[_Place]()
        codec, start, first = RowCodec(Integers(8), block), 0, 0
        for one in slices:
            plain = one.is_vector
            size = (
                _WORD_BYTES * -(-one.count * dtype.itemsize // _WORD_BYTES)
                if plain
                else codec.size(one.count)
            )
            place = _Place(start, start + one.count, first, first + size, None if plain else codec)
            self._places.append(place)
            start, first = place.stop, place.last
        self._bytes = first

    def message(self) -> Message:
        """By formula: a byte a value and four a block, from each rank."""
        return Message("all_gather", self._ranks * self._bytes)

    def write(self, mine: Tensor) -> tuple[Tensor, Tensor]:
        """Room for everyone's message, and this rank's, of its slices one after the other."""
        message = torch.empty(self._bytes, dtype=torch.uint8, device=mine.device)
        for place in self._places:
            values, part = mine[place.start : place.stop], message[place.first : place.last]
            if place.codec is None:
                part[: values.nbytes].copy_(values.view(torch.uint8))
            else:
                place.codec.encode(values.to(torch.float32, copy=True), part, None)
        return message.new_empty(self._ranks * self._bytes), message

    def read(self, messages: Tensor, out: Tensor) -> None:
        """Everyone's message into the slices of all ranks."""
        for message, slices in zip(messages.chunk(self._ranks), out.chunk(self._ranks), strict=True):
            for place in self._places:
                values, part = slices[place.start : place.stop], message[place.first : place.last]
                if place.codec is None:
                    values.view(torch.uint8).copy_(part[: values.nbytes])
                else:
                    place.codec.decode(part, values)


Format = Literal["none", "bf16", "int8"]
_SCALE_BYTES = 4
_LEVELS = 127


def coarse(rows: Tensor, format_: Format) -> Tensor:
    """Rows [n, width] as they are sent: [n, width] of bf16, or uint8 [n, width + 4].

    int8 rounds multiples of a row's maximum / 127 to the nearest.
    """
    if format_ == "bf16":
        return rows.to(torch.bfloat16)
    wide = rows.float()
    scales = wide.abs().amax(dim=1, keepdim=True).clamp_min_(1e-30).div_(_LEVELS)
    message = torch.empty((len(rows), rows.shape[1] + _SCALE_BYTES), dtype=torch.uint8, device=rows.device)
    message[:, :-_SCALE_BYTES] = (wide / scales).round_().to(torch.int8).view(torch.uint8)
    message[:, -_SCALE_BYTES:] = scales.view(torch.uint8)
    return message


def whole(message: Tensor, format_: Format, dtype: torch.dtype) -> Tensor:
    """The rows [n, width] that a message tells of."""
    if format_ == "bf16":
        return message.to(dtype)
    scales = message[:, -_SCALE_BYTES:].contiguous().view(torch.float32)
    return (message[:, :-_SCALE_BYTES].view(torch.int8) * scales).to(dtype)
