"""Rows of activations as an all-to-all sends them: bf16, or int8 with a scale for each row."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Format = Literal["none", "bf16", "int8"]
_SCALE_BYTES = 4
_LEVELS = 127


def row_bytes(format_: Format, width: int, itemsize: int) -> int:
    """Of a row of so many values, which are ``itemsize`` bytes each as they are."""
    return {"none": width * itemsize, "bf16": 2 * width, "int8": width + _SCALE_BYTES}[format_]


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
