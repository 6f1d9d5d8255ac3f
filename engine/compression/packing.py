"""Codes of two to seven bits, packed into bytes without gaps: eight codes are ``bits`` bytes."""

from __future__ import annotations

import torch
from torch import Tensor


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
