"""Tensor-parallel products of a sequence that is gathered again for backward, or sent in chunks while it is computed.

``tp_regather`` keeps only this rank's slice of the input. The gradients of the matrices need the whole input again:
it is gathered a second time, while the gradient of the input is computed (arXiv 2205.05198, section 4.2.2). That
costs one more all-gather of a whole activation and saves 1 - 1 / tp of its memory.

``tp_chunks`` decomposes the products around tp's collectives as arXiv 2105.05720 does: one chunk is computed while
the next one is sent. A rank's slice of the sequence is cut into equal chunks. A gathered chunk holds the same part of
every rank's slice; its rows of the product depend on no other rows, so the result has the same values as without
chunks. Bytes are the same, messages are as many times more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.comm.channel import AsyncCall, Channel
from engine.model.axes import Matrix
from engine.model.linear import weight_gradient
from profilers.steps.wait_sampler import waits_here


def regathered_products(x: Tensor, channel: Channel, matrices: Sequence[Matrix]) -> tuple[Tensor, ...]:
    """A rank's slice [sequence / tp, ..., in] -> [sequence, ..., out / tp] for each matrix."""
    function: type[torch.autograd.Function] = _RegatheredProducts
    deferrals = [matrix.deferred for matrix in matrices]
    products: tuple[Tensor, ...] = function.apply(
        x, channel, deferrals, *(matrix.weight for matrix in matrices)
    )
    return products


class _RegatheredProducts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, channel: Channel, deferrals: Any, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        ctx.channel, ctx.parameters, ctx.deferrals = channel, weights, deferrals
        whole = channel.all_gather(x)
        return tuple(F.linear(whole, weight.to(x.dtype)) for weight in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        gathered = _gather(ctx.channel, x)
        rows = [gradient.flatten(0, -2) for gradient in gradients]
        back = rows[0] @ weights[0].to(x.dtype)
        for gradient, weight in zip(rows[1:], weights[1:], strict=True):
            back += gradient @ weight.to(x.dtype)
        whole = gathered()
        of_weights: list[Tensor | None] = []
        for parameter, deferral, gradient in zip(ctx.parameters, ctx.deferrals, rows, strict=True):
            if deferral is not None and deferral.note(parameter, gradient, whole):
                of_weights.append(None)
            else:
                of_weights.append(weight_gradient(gradient, whole).to(parameter.dtype))
        return ctx.channel.reduce_scatter(back.view(whole.shape)), None, None, *of_weights


def _gather(channel: Channel, x: Tensor) -> Callable[[], Tensor]:
    """Start gathering; what it returns waits for the whole."""
    if torch.compiler.is_compiling():
        whole = channel.all_gather(x)
        return lambda: whole
    x = x.contiguous()
    out = x.new_empty((x.shape[0] * channel.size, *x.shape[1:]))
    work = channel.start_all_gather_into(out, x)

    @waits_here
    def wait() -> Tensor:
        work.wait()
        return out

    return wait


Visit = Callable[[int, Tensor], None]


class Chunking(NamedTuple):
    """The group, the number of chunks, and whether only a slice of what is gathered is kept for backward."""

    channel: Channel
    chunks: int
    regathers: bool = False

    def gather(self, x: Tensor, visit: Visit) -> Tensor:
        """[sequence / tp, ...] -> [chunks, sequence / chunks, ...], each chunk in the order of ranks; ``visit`` takes
        one while the next is under way.
        """
        parts = x.contiguous().view(self.chunks, -1, *x.shape[1:])
        whole = x.new_empty((self.chunks, parts.shape[1] * self.channel.size, *x.shape[1:]))
        following = self.channel.start_all_gather_into(whole[0], parts[0])
        for chunk in range(self.chunks):
            following.wait()
            if chunk + 1 < self.chunks:
                following = self.channel.start_all_gather_into(whole[chunk + 1], parts[chunk + 1])
            visit(chunk, whole[chunk])
        return whole

    def scatter(
        self, make_chunk: Callable[[int], Tensor], meanwhile: Callable[[], None] = lambda: None
    ) -> Tensor:
        """The sum over ranks of chunks [sequence / chunks, ...]; this rank keeps its slice [sequence / tp, ...].

        A chunk is made while the one before is under way, and the last is while ``meanwhile`` goes on.
        """
        under_way, chunks = list[AsyncCall](), list[Tensor]()
        for chunk in range(self.chunks):
            partial = make_chunk(chunk).contiguous()
            while under_way:
                under_way.pop().wait()
            chunks.append(partial.new_empty((len(partial) // self.channel.size, *partial.shape[1:])))
            under_way.append(AsyncCall(self.channel.start_reduce_scatter_into(chunks[-1], partial)))
        meanwhile()
        under_way.pop().wait()
        return torch.cat(chunks)

    def rows_of(self, x: Tensor, chunk: int) -> Tensor:
        """What a chunk holds of [sequence, ...], as a view [tp, sequence / (tp * chunks), ...]."""
        return x.view(self.channel.size, self.chunks, -1, *x.shape[1:])[:, chunk]

    def order_chunks(self, x: Tensor) -> Tensor:
        """[sequence, ...] as ``gather`` orders it: a copy."""
        return torch.stack(
            [self.rows_of(x.contiguous(), chunk).flatten(0, 1) for chunk in range(self.chunks)]
        )


def chunked_columns(x: Tensor, cut: Chunking, matrices: Sequence[Matrix]) -> tuple[Tensor, ...]:
    """A rank's slice [sequence / tp, ..., in] -> [sequence, ..., out / tp] for each matrix."""
    function: type[torch.autograd.Function] = _Columns
    deferrals = [matrix.deferred for matrix in matrices]
    products: tuple[Tensor, ...] = function.apply(x, cut, deferrals, *(matrix.weight for matrix in matrices))
    return products


def chunked_rows(x: Tensor, cut: Chunking, matrix: Matrix) -> Tensor:
    """[sequence, ..., in / tp] -> the sum over ranks of the products, of which each keeps [sequence / tp, ..., out]."""
    function: type[torch.autograd.Function] = _Rows
    product: Tensor = function.apply(x, cut, matrix.deferred, matrix.weight)
    return product


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: Chunking, deferrals: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        narrow = [weight.to(x.dtype) for weight in weights]
        length = x.shape[0] * cut.channel.size
        out = [x.new_empty((length, *x.shape[1:-1], weight.shape[0])) for weight in weights]

        def multiply(chunk: int, gathered: Tensor) -> None:
            for product, weight in zip(out, narrow, strict=True):
                rows = cut.rows_of(product, chunk)
                rows.copy_(F.linear(gathered, weight).view(rows.shape))

        whole = cut.gather(x, multiply)
        ctx.save_for_backward(x if cut.regathers else whole, *weights)
        ctx.cut, ctx.parameters, ctx.deferrals = cut, weights, deferrals
        return tuple(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        cut: Chunking = ctx.cut
        saved, *weights = ctx.saved_tensors
        narrow = [weight.to(saved.dtype) for weight in weights]
        rows = [cut.order_chunks(gradient) for gradient in gradients]
        of_weights = list[Tensor | None]()

        def back(chunk: int) -> Tensor:
            total: Tensor = rows[0][chunk] @ narrow[0]
            for gradient, weight in zip(rows[1:], narrow[1:], strict=True):
                total += gradient[chunk] @ weight
            return total

        def weigh() -> None:
            whole = cut.gather(saved, lambda *_: None) if cut.regathers else saved
            for parameter, deferral, gradient in zip(ctx.parameters, ctx.deferrals, rows, strict=True):
                of_weights.append(_of_weight(parameter, deferral, gradient, whole))

        return cut.scatter(back, weigh), None, None, *of_weights


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: Chunking, deferral: Any, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.cut, ctx.deferral, ctx.parameter = cut, deferral, weight
        whole, narrow = x.contiguous(), weight.to(x.dtype)
        return cut.scatter(lambda chunk: F.linear(cut.rows_of(whole, chunk).flatten(0, 1), narrow))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cut: Chunking = ctx.cut
        x, weight = ctx.saved_tensors
        narrow, back = weight.to(gradient.dtype), torch.empty_like(x, memory_format=torch.contiguous_format)

        def multiply(chunk: int, gathered: Tensor) -> None:
            rows = cut.rows_of(back, chunk)
            rows.copy_((gathered @ narrow).view(rows.shape))

        whole = cut.gather(gradient, multiply)
        of_weight = _of_weight(ctx.parameter, ctx.deferral, whole, cut.order_chunks(x))
        return back, None, None, of_weight


def _of_weight(parameter: Any, deferral: Any, gradient: Tensor, x: Tensor) -> Tensor | None:
    """From factors in the same order of rows; None where it is taken later."""
    rows = gradient.flatten(0, -2)
    if deferral is not None and deferral.note(parameter, rows, x):
        return None
    return weight_gradient(rows, x).to(parameter.dtype)
