"""A model of one's own for the engine: `workbench train examples/workload/own_model.yaml`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.model.workload import Workload


class Block(nn.Module):
    """What a pipeline cuts between, ZeRO gathers and recomputation forgets."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Points:
    """Sample n is drawn from n alone; the target is the number of positive coordinates."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs

    def training(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        numbers = range(first, first + count)
        drawn = [torch.randn(self.inputs, generator=torch.Generator().manual_seed(n)) for n in numbers]
        points = torch.stack(drawn)
        return points, (points > 0).sum(dim=1)

    def validation(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        return self.training(10**9 + first, count)


def factory(inputs: int = 16, width: int = 64, layers: int = 4) -> Workload:
    """Called with `model.options`."""
    return Workload(
        name="points",
        first=lambda: nn.Linear(inputs, width),
        blocks=[lambda: Block(width)] * layers,
        last=lambda: nn.Linear(width, inputs + 1),
        batches=Points(inputs),
        loss=F.cross_entropy,
        metric=lambda logits, counts: (logits.argmax(dim=-1) == counts).double().mean(),
        metric_name="accuracy",
    )
