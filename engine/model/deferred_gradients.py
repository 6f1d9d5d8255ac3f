"""Weight gradients that wait: a backward split into the part others wait for and the part nobody waits for.

The matrices of a stage note the two factors of their weight's gradient (I); the product is taken later (W). See
the zero-bubble schedules, arXiv 2401.10241.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from engine.model.linear import weight_gradient

Key = tuple[int, int]


class DeferredGradients:
    """Factors of weight gradients by (stage, micro-batch); nothing is noted while ``key`` is None."""

    def __init__(self) -> None:
        self.key: Key | None = None
        self._factors: dict[Key, list[tuple[nn.Parameter, Tensor, Tensor]]] = {}

    def linear(self, x: Tensor, weight: nn.Parameter) -> Tensor:
        """``x`` [..., in] times ``weight`` [out, in]."""
        out: Tensor = _Linear.apply(x, weight, self)  # type: ignore[no-untyped-call]
        return out

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
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, store: DeferredGradients) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parameter, ctx.store = weight, store
        return torch.nn.functional.linear(x, weight.to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        back = (rows @ weight.to(gradient.dtype)).view(x.shape)
        if ctx.store.note(ctx.parameter, rows, x):
            return back, None, None
        return back, weight_gradient(rows, x).to(weight.dtype), None
