"""fp32 weights that an optimizer updates apart from the parameters a model computes with (arXiv 1710.03740).

Parameters in bf16 keep an fp32 copy, or updates below their resolution would be lost. With the optimizer offloaded
that copy and AdamW's state are in host memory (arXiv 2101.06840): gradients go down, new weights come back.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from engine.memory.host import on_host
from engine.sections import Memory


class Masters:
    """Makes the weights that are updated, and brings them back into the parameters."""

    def __init__(self, memory: Memory) -> None:
        self._offload = memory.offload in ("optimizer", "both")
        self._dtype = torch.bfloat16 if memory.parameters == "bf16" else torch.float32
        self._parts: list[Tensor] = []
        self._weights: list[Tensor] = []

    def narrow(self, parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, Tensor]:
        """Give parameters the dtype they compute in; returns the fp32 values they had."""
        values = {}
        for parameter in parameters:
            values[parameter] = parameter.detach()
            if parameter.dtype != self._dtype:
                parameter.data = parameter.data.to(self._dtype)
        return values

    def weight(self, part: Tensor, values: Tensor) -> nn.Parameter:
        """What to update for a part of a parameter with these fp32 values: the part itself where that will do."""
        if not self._offload and part.dtype == values.dtype:
            return nn.Parameter(part)
        master = on_host(values) if self._offload else values.detach().clone()
        self._parts.append(part)
        self._weights.append(master)
        return nn.Parameter(master)

    @torch.no_grad()
    def write_back(self) -> None:
        """The new weights into the parameters, rounded to their dtype."""
        for part, weight in zip(self._parts, self._weights, strict=True):
            part.copy_(weight, non_blocking=True)
