"""Products of a gathered sequence with matrices split by columns, which keep only this rank's slice for backward.

The gradients of the matrices need the whole input again. It is gathered a second time, while the gradient of the input
is computed (arXiv 2205.05198, section 4.2.2): one more all-gather of a whole activation for 1 - 1 / tp of its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.channel import Channel
from engine.workloads.casting import weight_gradient
from engine.workloads.workload import Matrix
from profilers.steps.wait_sampler import waits_here


def regathered_products(x: Tensor, channel: Channel, matrices: Sequence[Matrix]) -> tuple[Tensor, ...]:
    """A rank's slice [sequence / tp, ..., in] -> [sequence, ..., out / tp] for each matrix."""
    function: type[torch.autograd.Function] = _RegatheredProducts
    deferrals = [matrix.deferred for matrix in matrices]
    found: tuple[Tensor, ...] = function.apply(x, channel, deferrals, *(one.weight for one in matrices))
    return found


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
