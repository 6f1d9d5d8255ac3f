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

from engine.footprint.activations import count_kept_parts


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
    many slices as every other. Products with it are multiplied by ``scale``.
    """

    dim: int
    first: int
    length: int
    scale: float = 1.0

    def views(self, whole: Tensor) -> list[Tensor]:
        """The parts of a tensor like the matrix: one, or two around its end."""
        size = whole.shape[self.dim]
        end = min(self.length, size - self.first)
        ranges = [(self.first, end), (0, self.length - end)]
        return [whole.narrow(self.dim, start, length) for start, length in ranges if length]

    def zero_rest(self, whole: Tensor) -> None:
        """Of a tensor like the matrix, what is in no view."""
        size = whole.shape[self.dim]
        unkept = self._replace(first=(self.first + self.length) % size, length=size - self.length)
        for view in unkept.views(whole):
            view.zero_()


def ring_slice(parts: int, keep: float, dim: int, width: int, seed: tuple[int, ...]) -> RingSlice | None:
    """Of so many parts, of ``width`` rows (``dim`` 0) or columns (1), the share ``keep``; None of all. One seed gives
    the same slice on every rank. Divided by ``keep``, the mean over slices is what all parts give.
    """
    count = count_kept_parts(parts, keep)
    if count == parts:
        return None
    first = int(np.random.SeedSequence(seed).generate_state(1)[0]) % parts
    return RingSlice(dim, first * width, count * width, 1 / keep if dim else 1.0)


def sliced_linear(x: Tensor, weight: Tensor, part: RingSlice) -> Tensor:
    """``x`` times a slice of a matrix; the gradient of the rest is zero."""
    return apply(_SlicedLinear, x, weight, part)


class _SlicedLinear(torch.autograd.Function):
    """Multiplies with views of the matrix: a copy of the slice would cost as much as is saved, and be kept for each
    micro-batch.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, part: RingSlice) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.part = part
        views = [view.to(x.dtype).t() for view in part.views(weight)]
        rows = x.flatten(0, -2)
        product = (
            _join_products(rows, views) if part.dim == 0 else _sum_products(rows, views).mul_(part.scale)
        )
        return product.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        part, wide = ctx.part, x.flatten(0, -2)
        rows = gradient.flatten(0, -2) * part.scale if part.dim else gradient.flatten(0, -2)
        views = [view.to(rows.dtype) for view in part.views(weight)]
        back = _sum_products(rows, views) if part.dim == 0 else _join_products(rows, views)
        whole = torch.empty_like(weight)
        part.zero_rest(whole)
        kept_views = part.views(whole)
        sizes = [view.shape[part.dim] for view in kept_views]
        pairs = (
            [(piece, wide) for piece in rows.split(sizes, 1)]
            if part.dim == 0
            else [(rows, piece) for piece in wide.split(sizes, 1)]
        )
        for view, (left, right) in zip(kept_views, pairs, strict=True):
            _product(left.t(), right, view)
        return back.view(x.shape), whole, None


def _join_products(rows: Tensor, matrices: list[Tensor]) -> Tensor:
    """Products of ``rows`` [n, in] with each matrix [in, out], side by side."""
    if len(matrices) == 1:
        return torch.mm(rows, matrices[0])
    sizes = [matrix.shape[1] for matrix in matrices]
    joined = rows.new_empty(rows.shape[0], sum(sizes))
    for into, matrix in zip(joined.split(sizes, 1), matrices, strict=True):
        torch.mm(rows, matrix, out=into)
    return joined


def _sum_products(rows: Tensor, matrices: list[Tensor]) -> Tensor:
    """The sum of products of pieces of ``rows``, side by side, with each matrix [piece, out]."""
    pieces = rows.split([matrix.shape[0] for matrix in matrices], 1)
    total: Tensor = pieces[0] @ matrices[0]
    for piece, matrix in zip(pieces[1:], matrices[1:], strict=True):
        total.addmm_(piece, matrix)
    return total


def _product(left: Tensor, right: Tensor, into: Tensor) -> None:
    """Their product, written where it belongs."""
    if left.dtype == into.dtype:
        torch.mm(left, right, out=into)
    else:
        into.copy_(left @ right)


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
