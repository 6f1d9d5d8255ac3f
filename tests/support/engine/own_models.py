"""Workloads such as a person would write, for the seam's tests: one that works, and ones that do not."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.config.presets import ModelShape
from engine.config.sections import Data
from engine.model.axes import Axes, LocalExperts
from engine.model.data import open_corpus
from engine.model.decoder import Attention, Embedding, FeedForward, Linear, Norm
from engine.model.workload import Workload
from engine.model.workloads.llama import Windows
from engine.parallel.context.axis import WholeSequence
from engine.parallel.tensor import TensorParallel

HERE = "tests.support.engine.own_models"


@dataclass(frozen=True)
class Noise:
    """Vectors of 12 numbers; the target is a fixed function of them."""

    inputs: int = 12

    def training(self, first: int, count: int) -> tuple[Any, Any]:
        drawn = [
            np.random.default_rng([7, n]).standard_normal(self.inputs) for n in range(first, first + count)
        ]
        inputs = torch.as_tensor(np.stack(drawn), dtype=torch.float32)
        return inputs, inputs.square().sum(dim=1, keepdim=True) / self.inputs

    def validation(self, first: int, count: int) -> tuple[Any, Any]:
        return self.training(first + 1_000_000, count)


@dataclass(frozen=True)
class SlowNoise(Noise):
    """As from a slow disk."""

    seconds: float = 0.02

    def training(self, first: int, count: int) -> tuple[Any, Any]:
        time.sleep(self.seconds)
        return super().training(first, count)


@dataclass(frozen=True)
class PacedNoise(SlowNoise):
    """Held-out samples take a time of their own."""

    held_out: float = 0.02

    def validation(self, first: int, count: int) -> tuple[Any, Any]:
        time.sleep(self.held_out)
        return Noise.training(self, first + 1_000_000, count)


@dataclass(frozen=True)
class ColdNoise(SlowNoise):
    """The first batches take a time of their own."""

    first: float = 1.0
    steps: int = 2

    def training(self, first: int, count: int) -> tuple[Any, Any]:
        time.sleep((self.first - self.seconds) * (first < self.steps * count))
        return super().training(first, count)


class Narrower(nn.Module):
    """A block whose result is of another shape than its input, with a parameter that is no ``weight``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, outputs)
        self.scale = nn.Parameter(torch.rand(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x)) * self.scale


def shrinking(width: int = 24) -> Workload:
    """Blocks of falling width, and neither ``first`` nor a metric."""
    widths = [12, width, width // 2, width // 3, width // 4]
    return Workload(
        blocks=[_narrower(*pair) for pair in itertools.pairwise(widths)],
        last=lambda: nn.Linear(widths[-1], 1),
        batches=Noise(),
        loss=F.mse_loss,
    )


def slowly(seconds: float = 0.02) -> Workload:
    """The same, whose batches take so long to make."""
    return replace(shrinking(), batches=SlowNoise(seconds=seconds))


def paced(seconds: float, held_out: float) -> Workload:
    """The same, whose steps take so long, and each batch of a held-out loss so long; all else of them is little."""
    return replace(shrinking(), batches=PacedNoise(seconds=seconds, held_out=held_out))


def cold(seconds: float, first: float, steps: int = 2) -> Workload:
    """The same, whose steps take so long, and the first few of them longer."""
    return replace(shrinking(), batches=ColdNoise(seconds=seconds, first=first, steps=steps))


def long_losses(seconds: float) -> Workload:
    """The same, whose loss takes so long for each micro-batch, whatever its size."""

    def loss(*arguments: Tensor) -> Tensor:
        time.sleep(seconds)
        return F.mse_loss(*arguments)

    return replace(shrinking(), loss=loss)


def _narrower(inputs: int, outputs: int) -> Callable[[], nn.Module]:
    return lambda: Narrower(inputs, outputs)


def raises() -> Workload:
    raise FileNotFoundError("no images\nin the folder")


def leaves() -> Workload:
    sys.exit(3)


def endless(noted: str) -> Workload:
    """Waits without end for something that it started, whose number it writes down."""
    started = subprocess.Popen(["sleep", "1000"])
    Path(noted).write_text(str(started.pid), encoding="utf-8")
    started.wait()
    return shrinking()


def dies() -> Workload:
    os._exit(9)


def wrong_thing() -> object:
    return nn.Linear(2, 2)


def no_blocks() -> Workload:
    return replace(shrinking(), blocks=[])


def no_module() -> Workload:
    return replace(shrinking(), last=lambda: 5)  # type: ignore[arg-type, return-value]


def shared() -> Workload:
    one = nn.Linear(12, 12)
    return replace(shrinking(), blocks=[lambda: one, lambda: one], last=lambda: nn.Linear(12, 1))


def normalised() -> Workload:
    return replace(shrinking(), blocks=[lambda: nn.BatchNorm1d(12)], last=lambda: nn.Linear(12, 1))


def frozen() -> Workload:
    return replace(shrinking(), last=lambda: nn.Linear(6, 1).requires_grad_(False))


def halved() -> Workload:
    return replace(shrinking(), last=lambda: nn.Linear(6, 1).half())


def ragged() -> Workload:
    class Ragged(Noise):
        def training(self, first: int, count: int) -> tuple[Any, Any]:
            return np.zeros((count + 1, 12), dtype=np.float32), np.zeros(count)

    return replace(shrinking(), batches=Ragged())


def weighted(rows: int = 6, leave_out: bool = False) -> Workload:
    """With weights of its own; ``rows`` of the last matrix should be 6."""
    work = shrinking()
    weights: dict[str, Tensor] = {}
    for number, build in enumerate(work.blocks):
        weights |= {
            f"blocks.{number}.{name}": torch.ones_like(one) for name, one in build().named_parameters()
        }
    weights |= {"last.weight": torch.ones(1, rows)} | ({} if leave_out else {"last.bias": torch.zeros(1)})
    return replace(work, weights=weights)


def no_meta() -> Workload:
    """Its forward looks at values, which meta tensors do not have."""

    class Looks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (2.0 if float(x.sum()) > 0 else 1.0)

    return replace(shrinking(), blocks=[lambda: Looks(12, 12)] * 2, last=lambda: nn.Linear(12, 1))


SPLIT = ModelShape(layers=4, hidden=32, heads=4, kv_heads=2, ffn_hidden=64, vocabulary=256)
LENGTH = 32


def many_losses() -> Workload:
    """One for each sample."""
    return replace(shrinking(), loss=lambda out, targets: out.square().mean(-1))


def plain_loss() -> Workload:
    """A number of Python's."""
    return replace(shrinking(), loss=lambda out, targets: 0.5)  # type: ignore[arg-type, return-value]


def unnamed_weights() -> Workload:
    """A list of them."""
    return replace(weighted(), weights=[torch.zeros(1)])  # type: ignore[arg-type]


def number_weights() -> Workload:
    """One is a number."""
    whole = weighted()
    return replace(whole, weights={**(whole.weights or {}), "last.bias": 0.0})  # type: ignore[dict-item]


def other_weights() -> Workload:
    """Of a model that has a block more."""
    whole = weighted()
    return replace(whole, weights={**(whole.weights or {}), "blocks.9.up.weight": torch.zeros(1)})


def split(weights: bool = False) -> Workload:
    """A decoder in parts that say how they are split over tp and cp."""
    work = Workload(
        first=SplitEmbedding,
        blocks=[SplitBlock] * SPLIT.layers,
        last=SplitHead,
        batches=Windows(open_corpus(Data(sequence_length=LENGTH), 0)),
        loss=lambda logits, targets, axes: axes.tensor.cross_entropy(
            logits.flatten(0, 1), targets.transpose(0, 1).reshape(-1)
        ),
        splits=("tp", "cp"),
        tokens=LENGTH,
    )
    return replace(work, weights=_counted_weights(work)) if weights else work


def split_wrongly() -> Workload:
    return replace(shrinking(), splits=("ep",))


def _counted_weights(work: Workload) -> dict[str, Tensor]:
    """Whole tensors in which an element's value tells its place."""
    alone = Axes(TensorParallel(), WholeSequence(), LocalExperts())
    found: dict[str, Tensor] = {}
    parts = {
        "first": work.first,
        **{f"blocks.{i}": one for i, one in enumerate(work.blocks)},
        "last": work.last,
    }
    for name, build in parts.items():
        assert build is not None
        for own, one in build(alone).named_parameters():
            rising = torch.arange(one.numel(), dtype=torch.float32).view(one.shape)
            found[f"{name}.{own}"] = 0.05 * torch.sin(rising + len(found))
    return found


def _drawn(module: nn.Module, axes: Axes) -> None:
    """Every rank draws whole matrices, and keeps its part."""
    for one in module.modules():
        if isinstance(one, Linear | Embedding):
            whole = list(one.weight.shape)
            whole[one.tp_dim] *= axes.tensor.size
            one.weight.data = axes.tensor.shard(torch.empty(whole).normal_(0.0, 0.1), one.tp_dim).clone()


class SplitEmbedding(nn.Module):
    """Bytes [samples, sequence / cp] -> [sequence / (cp * tp), samples, hidden]."""

    def __init__(self, axes: Axes) -> None:
        super().__init__()
        self.tokens = Embedding(SPLIT, axes.tensor, torch.float32)
        _drawn(self, axes)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.tokens(tokens)
        return out


class SplitBlock(nn.Module):
    """Attention over all places, wherever they are, and a feed-forward."""

    def __init__(self, axes: Axes) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm(SPLIT.hidden) for _ in range(2))
        self.attention, self.feed = Attention(SPLIT, axes), FeedForward(SPLIT, axes.tensor)
        angles = torch.outer(axes.context.positions(LENGTH).float(), torch.tensor([1.0, 0.3, 0.1, 0.03]))
        self.register_buffer("rotary", torch.stack((angles.cos(), angles.sin())), persistent=False)
        _drawn(self, axes)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x), self.rotary)
        out: Tensor = x + self.feed(self.norms[1](x))
        return out


class SplitHead(nn.Module):
    """Logits [sequence / cp, samples, vocabulary / tp]."""

    def __init__(self, axes: Axes) -> None:
        super().__init__()
        self.tp, self.norm = axes.tensor, Norm(SPLIT.hidden)
        self.head = Linear(SPLIT.vocabulary, SPLIT.hidden, axes.tensor, 0)
        _drawn(self, axes)

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.tp.column_products(self.norm(x), (self.head,))
        return logits
