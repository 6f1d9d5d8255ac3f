"""Coarse gradients to their owners and coarse weights from them, on real ranks: bytes as the formulas say."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.channel import Channel
from engine.compression.compressor import GradientCompressor
from engine.compression.interface import Content, content_of
from engine.config.compression import Settings
from engine.parallel.data.fsdp_comm import CoarseShards, Gather, Slice
from profilers.collectives.recorder import CollectiveRecorder
from profilers.steps.clock import clock_for
from profilers.steps.timer import StepTimer
from tests.engine.compression.test_interface import together
from tests.support.ranks import on_ranks

RANKS = 3
#: Slices cut through parameters, whole runs and gaps of small ones; the last bucket has padding behind it.
BUCKETS: tuple[dict[str, tuple[int, ...]], ...] = (
    {"a.w1": (61, 47), "a.norm": (61,), "a.w2": (96, 64), "a.bias": (7,)},
    {"b.experts": (3, 40, 32), "b.norm": (33,), "b.w1": (100, 40)},
)
INT8 = Settings("int8", 8, parameters={"bucket_values": 64})
METHODS = {
    "int8": INT8,
    "int8 stochastic": replace(INT8, stochastic=True),
    "int4": Settings("int4", 4, parameters={"bucket_values": 64}),
    "mixed": replace(INT8, values={"a.w2": None, "b.w1": 4}),
    "int8 without feedback": replace(INT8, stochastic=True, error_feedback=False),
}
STEPS = 6


class Rank:
    """Buckets whose averages are needed slice by slice."""

    def __init__(self, settings: Settings) -> None:
        self.step = 0
        self.contents = [_padded(index, named) for index, named in enumerate(BUCKETS)]
        assert dist.group.WORLD is not None
        self.compressor: GradientCompressor = GradientCompressor(
            settings, dist.group.WORLD, 1, lambda: self.step, torch.device("cpu"), one_way=True
        )

    def go(self) -> tuple[Tensor, Tensor]:
        """One step: the averages that ranks found in their slices, and the true ones."""
        true = list[Tensor]()
        for content in self.contents:
            generator = torch.Generator().manual_seed(
                1_000 * self.step + 10 * content.index + dist.get_rank()
            )
            content.flat.copy_(torch.randn(content.flat.shape, generator=generator))
            content.flat[content.parts[-1].stop :] = 0.0
            true.append(content.flat.clone())
        together([self.compressor.reduce(content) for content in self.contents])
        self.step += 1
        return torch.cat([_of_all_slices(one.flat) for one in self.contents]), _mean(torch.cat(true))

    def left(self) -> Tensor:
        """What all ranks together have not sent yet, as a part of the average."""
        memories = [self.compressor.memory(content) for content in self.contents]
        pairs = zip(memories, self.contents, strict=True)
        return _mean(
            torch.cat([torch.zeros_like(one.flat) if memory is None else memory for memory, one in pairs])
        )

    def recorded(self) -> Counter[tuple[str, int]]:
        """The collectives of one step, by operation and payload."""
        recorder = CollectiveRecorder(StepTimer(clock_for("cpu")), {})
        recorder.start()
        together([self.compressor.reduce(content) for content in self.contents])
        recorder.stop()
        return Counter((call.operation, call.bytes) for call in recorder.take())

    def formula(self) -> Counter[tuple[str, int]]:
        found = [one for content in self.contents for one in self.compressor.messages(content)]
        return Counter((message.operation, message.bytes) for message in found)


def _padded(index: int, named: dict[str, tuple[int, ...]]) -> Content:
    size = sum(map(math.prod, named.values()))
    return content_of(index, torch.zeros(-(-size // RANKS) * RANKS), named)


def _of_all_slices(flat: Tensor) -> Tensor:
    whole = torch.empty_like(flat)
    dist.all_gather(list(whole.chunk(RANKS)), flat.chunk(RANKS)[dist.get_rank()].clone())
    return whole


def _mean(x: Tensor) -> Tensor:
    total = x.clone()
    dist.all_reduce(total)
    return total / RANKS


def check_gradients(_: int) -> dict[str, dict[str, Any]]:
    found = {}
    for name, settings in METHODS.items():
        rank = Rank(settings)
        averages, trues = zip(*(rank.go() for _ in range(STEPS)), strict=True)
        sent, due, left = torch.stack(averages).sum(0), torch.stack(trues).sum(0), rank.left()
        found[name] = {
            "sent": rank.recorded(),
            "formula": rank.formula(),
            "first": float((averages[0] - trues[0]).norm() / trues[0].norm()),
            "lost": float((sent + left - due).norm() / due.norm()) if settings.error_feedback else 0.0,
            "again": bool(torch.equal(Rank(settings).go()[0], averages[0])),
        }
    return found


@pytest.fixture(scope="module")
def gradients() -> list[dict[str, dict[str, Any]]]:
    return on_ranks(RANKS, check_gradients)


@pytest.mark.parametrize("name", METHODS)
def test_gradients_come_to_their_owners(gradients: list[dict[str, dict[str, Any]]], name: str) -> None:
    for one in (found[name] for found in gradients):
        assert one["sent"] == one["formula"]
        assert 1e-4 < one["first"] < (0.2 if name in ("int4", "mixed") else 0.02)
        assert one["lost"] < 1e-5, "what was not sent is not in the memory"
        assert one["again"], "the same step gave other bits"
    sizes = {size for operation, size in gradients[0][name]["sent"] if operation == "all_to_all"}
    plain = sum(4 * math.prod(shape) for named in BUCKETS for shape in named.values())
    assert sum(sizes) < plain * (0.2 if name == "int4" else 0.35)


SLICES = (Slice(640, False), Slice(16, True), Slice(72, False))
BLOCK = 64


def check_weights(rank: int, dtype: torch.dtype, beside: bool) -> dict[str, Any]:
    """A gather of what FSDP2 would hand over: a rank's slices lie in the output already."""
    assert dist.group.WORLD is not None
    gather = Gather(Channel(dist.group.WORLD, torch.device("cpu")))
    gather.coarse = CoarseShards(SLICES, RANKS, BLOCK, dtype)
    each = sum(one.count for one in SLICES)
    mine = torch.randn(each, generator=torch.Generator().manual_seed(rank)).to(dtype)
    out = torch.full((RANKS * each,), torch.nan, dtype=dtype)
    out.chunk(RANKS)[rank].copy_(mine)
    exact = mine.clone()
    recorder = CollectiveRecorder(StepTimer(clock_for("cpu")), {})
    recorder.start()
    work = gather(out, mine, dist.group.WORLD, async_op=beside)
    if work is not None:
        work.wait()
    recorder.stop()
    sent = [(call.operation, call.bytes) for call in recorder.take()]
    message = gather.coarse.message()
    return {
        "out": out.float().numpy(),
        "exact": torch.equal(mine, exact),
        "sent": sent,
        "formula": [(message.operation, message.bytes)],
    }


@pytest.mark.parametrize(("dtype", "beside"), [(torch.float32, False), (torch.bfloat16, True)])
def test_weights_are_gathered_in_int8_and_vectors_as_they_are(dtype: torch.dtype, beside: bool) -> None:
    found = on_ranks(RANKS, check_weights, dtype, beside)
    first, _, _ = (one.count for one in SLICES)
    for one in found:
        assert one["exact"] and one["sent"] == one["formula"]
        assert np.array_equal(one["out"], found[0]["out"]), "ranks compute with different weights"
    for rank, slices in enumerate(torch.from_numpy(found[0]["out"]).chunk(RANKS)):
        true = torch.randn(len(slices), generator=torch.Generator().manual_seed(rank)).to(dtype).float()
        assert torch.equal(slices[first : first + 16], true[first : first + 16])
        scales = true[:first].view(-1, BLOCK).abs().amax(1, keepdim=True) / 127
        error = (slices[:first] - true[:first]).view(-1, BLOCK).abs()
        rounding = 2.0**-8 * true[:first].view(-1, BLOCK).abs() if dtype == torch.bfloat16 else 0.0
        assert bool((error <= 0.51 * scales + rounding).all()) and float(error.max()) > 0
