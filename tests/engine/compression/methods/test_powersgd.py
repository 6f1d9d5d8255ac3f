"""fp16 and PowerSGD beside torch's own hooks in DDP, with one bucket: torch's PowerSGD fails with more on gloo."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from engine.compression.compressor import GradientCompressor
from engine.compression.interface import content_of
from engine.config.compression import Settings
from tests.support.ranks import on_ranks

WIDTHS = (48, 96, 64)
STEPS, RANK = 6, 2


def model() -> nn.Sequential:
    torch.manual_seed(0)
    first, second = (nn.Linear(a, b) for a, b in pairwise(WIDTHS))
    return nn.Sequential(first, nn.Tanh(), second)


def batch(step: int) -> Tensor:
    drawn = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(16, WIDTHS[0], generator=drawn)


def loss_of(module: nn.Module, step: int) -> Tensor:
    x = batch(step)
    loss: Tensor = ((module(x) - x.roll(1, 1)[:, :1]) ** 2).mean()
    return loss


def train(module: nn.Module, parameters: list[nn.Parameter], average: Callable[[], None]) -> list[Tensor]:
    """The averaged gradients of each step, flat."""
    found = []
    for step in range(STEPS):
        loss_of(module, step).backward()
        average()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        found.append(torch.cat([gradient.flatten() for gradient in gradients]))
        with torch.no_grad():
            torch._foreach_add_(list[Tensor](parameters), gradients, alpha=-0.1)
        for parameter in parameters:
            parameter.grad = None
    return found


def by_torch(method: str) -> list[Tensor]:
    module = model()
    wrapped = DistributedDataParallel(module, bucket_cap_mb=25, gradient_as_bucket_view=True)
    if method == "fp16":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    else:
        state = powerSGD_hook.PowerSGDState(
            dist.group.WORLD, RANK, start_powerSGD_iter=2, min_compression_rate=1, random_seed=3
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(wrapped, list(module.parameters()), lambda: None)


def by_ours(settings: Settings) -> list[Tensor]:
    module = model()
    parameters, step = dict(module.named_parameters()), [0]
    flat = torch.zeros(sum(parameter.numel() for parameter in parameters.values()))
    content = content_of(0, flat, {name: tuple(one.shape) for name, one in parameters.items()})
    assert dist.group.WORLD is not None
    compressor = GradientCompressor(settings, dist.group.WORLD, 0, lambda: step[0], torch.device("cpu"))

    def average() -> None:
        torch.cat([one.grad.flatten() for one in parameters.values()], out=flat)  # type: ignore[union-attr]
        for under_way in compressor.reduce(content):
            under_way.wait()
        for part in content.parts:
            parameters[part.name].grad = flat[part.start : part.stop].view(part.shape).clone()
        step[0] += 1

    return train(module, list(parameters.values()), average)


def far(found: list[Tensor], other: list[Tensor]) -> list[float]:
    return [float((a - b).norm() / b.norm()) for a, b in zip(found, other, strict=True)]


def compare(_: int, method: str, settings: Settings) -> dict[str, Any]:
    exact = by_ours(Settings("none", error_feedback=False))
    theirs, ours = by_torch(method), by_ours(settings)
    return {"apart": far(ours, theirs), "ours": far(ours, exact), "theirs": far(theirs, exact)}


def test_fp16_is_torchs() -> None:
    """Both round each gradient to 11 bits; ours divides before it, torch's after."""
    for found in on_ranks(2, compare, "fp16", Settings("fp16", 16, error_feedback=False)):
        assert max(found["apart"]) < 2e-3
        assert 0 < max(found["ours"]) < 2e-3


def test_powersgd_comes_as_near_as_torchs() -> None:
    """The first Q is drawn otherwise; after some steps of power iteration that does not matter."""
    for found in on_ranks(2, compare, "powersgd", Settings("powersgd", RANK, start_step=2)):
        assert max(found["apart"][:2]) < 1e-5, "before the start both are exact"
        assert found["ours"][2] > 1e-3
        assert found["ours"][-1] == pytest.approx(found["theirs"][-1], rel=0.35)
