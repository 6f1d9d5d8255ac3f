"""Matrix products whose backward is our own: narrow activations with a wider matrix, and weight gradients that wait.

Of a wider matrix backward makes the narrow copy again, so none is kept: a matrix is as large for one micro-batch as for
all of them, and its copies would add up over the micro-batches in flight.

Where a schedule splits the backward, matrices note the two factors of their weight's gradient in the part that others
wait for (I); the product is taken in the part that nobody waits for (W): the zero-bubble schedules, arXiv 2401.10241.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    """``function.apply(*arguments)`` of a function with one tensor as its result."""
    result: Tensor = function.apply(*arguments)
    return result


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x`` [..., in] times ``weight`` [out, in] -> [..., out] in the dtype of ``x``."""
    return F.linear(x, weight) if x.dtype == weight.dtype else apply(_Linear, x, weight, None)


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """Gradient [out, in] of a matrix from that of its product [..., out] and its input [..., in]."""
    return gradient.flatten(0, -2).t() @ x.flatten(0, -2)


Key = tuple[int, int]


class DeferredGradients:
    """Factors of weight gradients by (stage, micro-batch); nothing is noted while ``key`` is None."""

    def __init__(self) -> None:
        self.key: Key | None = None
        self._factors: dict[Key, list[tuple[nn.Parameter, Tensor, Tensor]]] = {}

    def linear(self, x: Tensor, weight: nn.Parameter) -> Tensor:
        """``x`` [..., in] times ``weight`` [out, in]."""
        return apply(_Linear, x, weight, self)

    def note(self, weight: nn.Parameter, gradient: Tensor, x: Tensor) -> bool:
        """Keep the factors; False if the product has to be taken at once."""
        if self.key is None:
            return False
        self._factors.setdefault(self.key, []).append((weight, gradient, x))
        return True

    def products(self, key: Key) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Each parameter with its gradient of one micro-batch; the factors are forgotten."""
        for weight, gradient, x in self._factors.pop(key, []):
            with torch.no_grad():
                product = weight_gradient(gradient, x)
            yield weight, product


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, deferred: DeferredGradients | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.deferred = deferred
        if deferred is not None:
            ctx.parameter = weight
        return F.linear(x, weight.to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)  # once: it may be a copy
        back = (rows @ weight.to(gradient.dtype)).view(x.shape)
        if ctx.deferred is not None and ctx.deferred.note(ctx.parameter, rows, x):
            return back, None, None
        return back, weight_gradient(rows, x).to(weight.dtype), None
