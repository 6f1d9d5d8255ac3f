"""Parameters in int8 for the all-gather of what ranks hold slices of, as ZeRO++'s qwZ (arXiv 2306.10209)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.compression.content import Message
from engine.compression.rows import Integers, RowCodec

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
