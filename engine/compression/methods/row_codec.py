"""Codec of values as rows that share an fp32 scale, each value a few bits: maximum-scaled integers, and signs.

A message holds one scale for every row and then the rows' bits, each row's filled up to whole bytes. Codes of two to
seven bits are packed without gaps: eight codes are ``bits`` bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine.compression.randomness import BLOCK_VALUES


def pack(codes: Tensor, bits: int, out: Tensor) -> None:
    """Codes uint8 [r, w] below 2^bits, w a multiple of 8, into ``out`` uint8 [r, w * bits / 8].

    Codes that lie w / 8 apart share a word of 64 bits, of which the lowest ``bits`` bytes are kept.
    """
    rows, width = codes.shape
    words = torch.zeros(rows, width // 8, dtype=torch.int64, device=codes.device)
    for place, eighth in enumerate(codes.split(width // 8, dim=1)):
        words |= eighth.to(torch.int64) << (bits * place)
    out.view(rows, -1, bits).copy_(words.view(torch.uint8).view(rows, -1, 8)[..., :bits])


def unpack(packed: Tensor, bits: int, out: Tensor) -> None:
    """The reverse of ``pack``: into ``out`` [r, w] of any dtype."""
    rows, eighth = len(packed), out.shape[1] // 8
    words = torch.zeros(rows, eighth, 8, dtype=torch.uint8, device=packed.device)
    words[..., :bits] = packed.view(rows, eighth, bits)
    whole = words.view(torch.int64).view(rows, eighth)
    for place, part in enumerate(out.split(eighth, dim=1)):
        part.copy_((whole >> (bits * place)) & (2**bits - 1))


_SCALE_BYTES = 4
#: Moves bit i of each of eight bytes that are 0 or 1 to bit i of the highest byte.
_GATHER_BITS = 0x0102040810204080


class Rows(Protocol):
    """One way to write rows; ``bits`` a value."""

    bits: int

    def encode(self, x: Tensor, count: int, scales: Tensor, codes: Tensor, noise: Tensor | None) -> None:
        """Rows ``x`` [r, w], of which ``count`` values each are real and the rest zeros, into scales [r] and codes
        uint8 [r, w * bits / 8]. What they do not say stays in ``x``. ``noise`` is uniform in [0, 1), like ``x``.
        """

    def decode(self, scales: Tensor, codes: Tensor, width: int) -> Tensor:
        """Rows [r, w] in units of their scales, fp32."""


class Integers:
    """Rounded multiples of maximum / (2^(bits-1) - 1), as QSGD (arXiv 1610.02132) with the maximum norm.

    With noise the rounding is stochastic and without bias; an error is smaller than the scale. Zero stays zero.
    Two to eight bits; two are -1, 0 and 1.
    """

    def __init__(self, bits: int) -> None:
        self.bits, self._levels, self._middle = bits, 2 ** (bits - 1) - 1, 2 ** (bits - 1)

    def encode(self, x: Tensor, count: int, scales: Tensor, codes: Tensor, noise: Tensor | None) -> None:
        """A little more than the maximum over the levels is the scale, so that noise cannot lift it over the last."""
        work = x.abs()
        torch.amax(work, 1, out=scales)
        scales.clamp_min_(1e-30).mul_((1 + 2**-20) / self._levels)
        torch.div(x, scales[:, None], out=work)
        work = work.round_() if noise is None else work.add_(noise).floor_()
        x.addcmul_(work, scales[:, None], value=-1)
        if self.bits == 8:
            codes.view(torch.int8).copy_(work)
            return
        shifted, half = work.add_(self._middle).to(torch.uint8), x.shape[1] // 2
        if self.bits == 4:
            torch.bitwise_or(shifted[:, :half], shifted[:, half:] << 4, out=codes)
        else:
            pack(shifted, self.bits, codes)

    def decode(self, scales: Tensor, codes: Tensor, width: int) -> Tensor:
        if self.bits == 8:
            return codes.view(torch.int8).to(torch.float32)
        out = scales.new_empty(len(scales), width)
        if self.bits == 4:
            out[:, : width // 2] = codes & 15
            out[:, width // 2 :] = codes >> 4
        else:
            unpack(codes, self.bits, out)
        return out.sub_(self._middle)


class Signs:
    """A sign each, times the row's mean magnitude (arXiv 1802.04434 with the scale of 1901.09847)."""

    bits = 1

    def __init__(self, device: torch.device) -> None:
        places = torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device)
        self._table = 1.0 - 2.0 * (places & 1).to(torch.float32)

    def encode(self, x: Tensor, count: int, scales: Tensor, codes: Tensor, noise: Tensor | None) -> None:
        """A set bit is a minus."""
        torch.sum(x.abs(), 1, out=scales)
        scales.div_(count)
        minus = torch.signbit(x).view(torch.int64) * _GATHER_BITS
        codes.copy_(minus.view(torch.uint8)[:, 7::8])
        x.sub_(torch.copysign(scales[:, None], x))

    def decode(self, scales: Tensor, codes: Tensor, width: int) -> Tensor:
        return self._table.index_select(0, codes.reshape(-1).int()).view(len(scales), width)


class _Span(NamedTuple):
    """Values [start, stop) as rows of ``width``, their first row, and where their codes begin."""

    start: int
    stop: int
    width: int
    row: int
    code: int


class RowCodec:
    """Writes fp32 [n] as rows of ``length`` values, a multiple of 8, and a shorter last one."""

    def __init__(self, rows: Rows, length: int) -> None:
        self._rows, self.length = rows, length

    def size(self, count: int) -> int:
        """Bytes of a message of ``count`` values: four a row and ``bits`` for every eight values, in whole words."""
        return 4 * -(-(self._scale_bytes(count) + self._rows.bits * -(-count // 8)) // 4)

    def encode(self, values: Tensor, message: Tensor, noise: Tensor | None) -> None:
        """Into uint8 [size(n)]; what the message does not say stays in ``values``. ``noise`` is as long as a block."""
        for span, scales, codes in self._spans(len(values), message):
            part = values[span.start : span.stop]
            if len(part) % span.width == 0:
                x = part.view(-1, span.width)
                self._rows.encode(x, span.width, scales, codes, _like(noise, x))
                continue
            x = part.new_zeros(1, span.width)
            x[0, : len(part)] = part
            self._rows.encode(x, len(part), scales, codes, _like(noise, x))
            part.copy_(x[0, : len(part)])

    def decode(self, message: Tensor, out: Tensor, share: float | None = None) -> None:
        """Values [n] of a message into ``out``; with ``share``, so much of them is added to it."""
        for span, scales, codes in self._spans(len(out), message):
            units, part = self._rows.decode(scales, codes, span.width), out[span.start : span.stop]
            if len(part) % span.width:
                units = units[:, : len(part)]
            part = part.view(units.shape)
            if share is None:
                torch.mul(units, scales[:, None], out=part)
            else:
                part.addcmul_(units, scales[:, None], value=share)

    def _spans(self, count: int, message: Tensor) -> Iterator[tuple[_Span, Tensor, Tensor]]:
        """Blocks of rows with their scales [r] and codes [r, bytes]."""
        first, bits = self._scale_bytes(count), self._rows.bits
        every, codes = message[:first].view(torch.float32), message[first:]
        for span in self._ranges(count, message.device.type == "cpu"):
            rows, row_bytes = -(-(span.stop - span.start) // span.width), span.width * bits // 8
            lines = codes[span.code : span.code + rows * row_bytes].view(rows, row_bytes)
            yield span, every[span.row : span.row + rows], lines

    def _ranges(self, count: int, in_blocks: bool) -> Iterator[_Span]:
        length, bits = self.length, self._rows.bits
        whole = count // length
        block = max(1, BLOCK_VALUES // length) if in_blocks else max(1, whole)
        for row in range(0, whole, block):
            stop = min(row + block, whole)
            yield _Span(row * length, stop * length, length, row, row * length * bits // 8)
        if remainder := count - whole * length:
            yield _Span(whole * length, count, 8 * -(-remainder // 8), whole, whole * length * bits // 8)

    def _scale_bytes(self, count: int) -> int:
        return _SCALE_BYTES * -(-count // self.length)


def _like(noise: Tensor | None, x: Tensor) -> Tensor | None:
    return None if noise is None else noise[: x.numel()].view(x.shape)
