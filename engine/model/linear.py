"""Products of a narrow activation with a wider matrix: backward casts the matrix again, so no copy of it is kept.

A matrix is as large for one micro-batch as for all of them; its copies would add up over the micro-batches in flight.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    """``function.apply(*arguments)`` of a function with one tensor as its result."""
    result: Tensor = function.apply(*arguments)
    return result


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x`` [..., in] times ``weight`` [out, in] -> [..., out] in the dtype of ``x``."""
    return F.linear(x, weight) if x.dtype == weight.dtype else apply(_CastLinear, x, weight)


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """Gradient [out, in] of a matrix from that of its product [..., out] and its input [..., in]."""
    return gradient.flatten(0, -2).t() @ x.flatten(0, -2)


class _CastLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight.to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)  # once: it may be a copy
        back = (rows @ weight.to(gradient.dtype)).view(x.shape)
        return back, weight_gradient(rows, x).to(weight.dtype)
