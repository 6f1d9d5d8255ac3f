"""Matrix products whose backward is our own: narrow activations with a wider matrix, and weight gradients that wait.

Of a wider matrix backward makes the narrow copy again, so none is kept: a matrix is as large for one micro-batch as for
all of them, and its copies would add up over the micro-batches in flight.

Where a schedule splits the backward, matrices note the two factors of their weight's gradient in the part that others
wait for (I); the product is taken in the part that nobody waits for (W): the zero-bubble schedules, arXiv 2401.10241.

A step may take a contiguous slice of heads and of a feed-forward's width in place of all (SliceOut, arXiv 2007.10909).
The paper's slices never go around, so that parts in the middle are trained more often than those at the ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from engine.footprint.activations import kept_parts


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


class RingSlice(NamedTuple):
    """A contiguous part of a matrix's rows (``dim`` 0) or columns (1), which may go on at the beginning: each is in as
    many slices as every other. What is taken of it is multiplied by ``scale``.
    """

    dim: int
    first: int
    length: int
    scale: float = 1.0

    def views(self, whole: Tensor) -> list[Tensor]:
        """The parts of a tensor like the matrix: one, or two around its end."""
        size = whole.shape[self.dim]
        until = min(self.length, size - self.first)
        ranges = [(self.first, until), (0, self.length - until)]
        return [whole.narrow(self.dim, start, length) for start, length in ranges if length]

    def of(self, matrix: Tensor, dtype: torch.dtype) -> Tensor:
        """What a product takes of it."""
        views = self.views(matrix)
        part = (views[0] if len(views) == 1 else torch.cat(views, self.dim)).to(dtype)
        return part if self.scale == 1 else part * self.scale


def ring_slice(parts: int, keep: float, dim: int, each: int, seed: tuple[int, ...]) -> RingSlice | None:
    """Of so many parts, of ``each`` rows (``dim`` 0) or columns (1), the share ``keep``; None of all. One seed gives
    the same slice on every rank. Divided by ``keep``, the mean over slices is what all parts give.
    """
    count = kept_parts(parts, keep)
    if count == parts:
        return None
    first = int(np.random.SeedSequence(seed).generate_state(1)[0]) % parts
    return RingSlice(dim, first * each, count * each, 1 / keep if dim else 1.0)


def sliced_linear(x: Tensor, weight: Tensor, part: RingSlice) -> Tensor:
    """``x`` times a slice of a matrix; the gradient of the rest is zero."""
    return apply(_SlicedLinear, x, weight, part)


class _SlicedLinear(torch.autograd.Function):
    """Takes the slice again in backward: a copy of it would be kept for each micro-batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, part: RingSlice) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.part = part
        return F.linear(x, part.of(weight, x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        rows, part = gradient.flatten(0, -2), ctx.part
        back = (rows @ part.of(weight, gradient.dtype)).view(x.shape)
        whole, views = torch.zeros_like(weight), part.views(weight)
        own = weight_gradient(rows, x).mul_(part.scale)
        for into, one in zip(
            part.views(whole), own.split([v.shape[part.dim] for v in views], part.dim), strict=True
        ):
            into.copy_(one)
        return back, whole, None


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
        # The input is for the weight's gradient alone, and a frozen matrix has none.
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.shape, ctx.deferred = x.shape, deferred
        if deferred is not None:
            ctx.parameter = weight
        return F.linear(x, weight.to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)  # once: it may be a copy
        back = (rows @ weight.to(gradient.dtype)).view(ctx.shape)
        if x is None:
            return back, None, None
        if ctx.deferred is not None and ctx.deferred.note(ctx.parameter, rows, x):
            return back, None, None
        return back, weight_gradient(rows, x).to(weight.dtype), None
