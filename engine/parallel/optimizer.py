"""AdamW and clipping by the global norm, on each rank's own tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from engine.channel import all_reduce_scalar
from engine.config import Train
from engine.groups import Groups
from engine.parallel.replica import Replica
from engine.parallel.tensor import reduce_partial_gradients


class LocalOptimizer:
    """Optimizer over local aliases: a sharded parameter is stepped through its local slice.

    AdamW on DTensors costs several times as much as on the slices they hold, and gives the same bits.
    """

    def __init__(self, replica: Replica, groups: Groups, train: Train) -> None:
        self._groups, self._clip = groups, train.clip_norm
        dims = _tp_dims(replica)
        self._sources = [parameter for _, parameter in replica.named_parameters()]
        self._replicated = [dims[name] is None for name, _ in replica.named_parameters()]
        self._locals = [_alias(parameter) for parameter in self._sources]
        decayed = [local for local in self._locals if local.ndim > 1]
        plain = [local for local in self._locals if local.ndim <= 1]
        options: list[dict[str, Any]] = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
        self._adamw = torch.optim.AdamW(
            [option for option in options if option["params"]],
            lr=train.learning_rate,
            weight_decay=train.weight_decay,
            fused=True,
        )

    def step(self) -> float:
        """Clip, update and clear; returns the global gradient norm before clipping.

        A norm that is not finite leaves the parameters untouched; the caller ends the run as diverged.
        """
        gradients = self._gradients()
        if self._groups.tp is not None:
            partial = [g for g, replicated in zip(gradients, self._replicated, strict=True) if replicated]
            if partial:
                reduce_partial_gradients(partial, self._groups.tp)
        norm = self._norm(gradients)
        if math.isfinite(norm):
            self._update(gradients, norm)
        return norm

    def _gradients(self) -> list[Tensor]:
        gradients = []
        for source, local in zip(self._sources, self._locals, strict=True):
            gradient = source.grad if source.grad is not None else torch.zeros_like(source)
            with torch.no_grad():
                local_gradient = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            local.grad = local_gradient
            gradients.append(local_gradient)
        return gradients

    def _norm(self, gradients: list[Tensor]) -> float:
        """A tensor that tp replicates counts on one tp rank only; shards and stages add up."""
        counted = [
            gradient
            for gradient, replicated in zip(gradients, self._replicated, strict=True)
            if gradient.numel() and not (replicated and self._groups.at.tp)
        ]
        squares = 0.0
        if counted:
            squares = float(torch.stack(torch._foreach_norm(counted)).double().square().sum().item())
        return math.sqrt(all_reduce_scalar(squares, self._groups.norm, gradients[0].device))

    def _update(self, gradients: list[Tensor], norm: float) -> None:
        if self._clip is not None and norm > self._clip:
            torch._foreach_mul_(gradients, self._clip / (norm + 1e-6))
        self._adamw.step()
        for source, local in zip(self._sources, self._locals, strict=True):
            local.grad = None
            source.grad = None


def _alias(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter on the same memory; of a DTensor, on its local slice."""
    with torch.no_grad():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        return nn.Parameter(local.detach())


def _tp_dims(replica: Replica) -> dict[str, int | None]:
    """Parameter name -> dimension split over tp, or None where tp replicates it."""
    return {
        f"{name}.weight": module.tp_dim
        for name, module in replica.decoder.named_modules()
        if hasattr(module, "tp_dim")
    }
