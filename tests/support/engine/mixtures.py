"""Mixtures of experts small enough to check by hand, and axes that send nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.model.axes import LocalExperts
from engine.model.experts.mixture import Mixture, MixtureShape, Routing, initialize_mixture
from engine.parallel.tensor import TensorParallel

SHAPE = MixtureShape(hidden=16, ffn_hidden=24, experts=6, top_k=2)
SEQUENCE, BATCH = 8, 3
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@dataclass(frozen=True)
class Part:
    """A place on an axis that sends nothing: enough to cut parameters."""

    size: int = 1
    rank: int = 0

    def shard(self, full: Tensor, dim: int | None) -> Tensor:
        return full if dim is None else full.chunk(self.size, dim)[self.rank].clone()


def margins(routing: Routing) -> Tensor:
    """By how much the last chosen expert beats the best one left out, [tokens]; zero is a tie."""
    ranked = routing.probabilities.sort(dim=-1, descending=True).values
    last = routing.experts.shape[1] - 1
    return ranked[:, last] - ranked[:, min(last + 1, ranked.shape[1] - 1)]


class OtherRanks:
    """A data axis whose other ranks bring known counts."""

    def __init__(self, counts: Tensor) -> None:
        self.counts, self.calls = counts, 0

    def all_reduce(self, x: Tensor) -> None:
        x.add_(self.counts)
        self.calls += 1


def mixture(shape: MixtureShape = SHAPE, tp: Any = None, ep: Any = None, data: Any = None) -> Mixture:
    """With larger weights than a training run starts from, so that experts differ."""
    module = Mixture(shape, tp or TensorParallel(), ep or LocalExperts(), data)
    initialize_mixture(module, "blocks.0.feed_forward", 0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(15.0)
    return module


def activations(seed: int = 1) -> Tensor:
    return torch.randn(SEQUENCE, BATCH, SHAPE.hidden, generator=torch.Generator().manual_seed(seed))


def gradients(module: Mixture, x: Tensor, loss: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*module.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, (x, *parameters))
    return dict(zip(("x", *names), found, strict=True))


def assert_same(mine: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Up to the order of sums, which differs by processor: their error goes with the largest values, not each one."""
    assert mine.keys() == expected.keys()
    for name, value in mine.items():
        largest = float(expected[name].abs().max())
        close = CLOSE | {"atol": CLOSE["atol"] * max(1.0, largest)}
        torch.testing.assert_close(
            value, expected[name], msg=lambda text, name=name: f"{name}: {text}", **close
        )
