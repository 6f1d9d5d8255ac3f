"""Compressors on real gloo ranks: the same bits everywhere, bytes as the formulas say, and nothing that gets lost."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.channel import Waitable
from engine.compression.compressor import GradientCompressor
from engine.compression.interface import Content, Reduction, content_of
from engine.config.compression import Settings
from profilers.collectives.recorder import CollectiveRecorder
from profilers.steps.clock import clock_for
from profilers.steps.timer import StepTimer
from tests.support.ranks import on_ranks

#: Two buckets; a matrix of odd sizes, vectors, and a batch of matrices as experts have them.
BUCKETS: tuple[dict[str, tuple[int, ...]], ...] = (
    {"a.w1": (61, 47), "a.norm": (61,), "a.w2": (96, 64), "a.bias": (7,)},
    {"b.experts": (3, 40, 32), "b.norm": (33,), "b.w1": (128, 40)},
)
USUAL: dict[str, Any] = {"parameters": {"bucket_values": 64}}
LOSSY = {
    "fp16": Settings("fp16", 16, error_feedback=True, **USUAL),
    "bf16": Settings("bf16", 16, error_feedback=True, **USUAL),
    "int8": Settings("int8", 8, stochastic=True, **USUAL),
    "int4": Settings("int4", 4, **USUAL),
    "topk": Settings("topk", 0.05, **USUAL),
    "randomk": Settings("randomk", 0.1, **USUAL),
    "powersgd": Settings("powersgd", 2, **USUAL),
    "sign": Settings("sign", 1, **USUAL),
}
#: Casts alone round sums, too, which no rank can remember.
CASTS = ("fp16", "bf16")
FED_BACK = [name for name in LOSSY if name not in CASTS]
#: Some parts with another value, or none.
MIXED = {
    "topk": replace(LOSSY["topk"], values={"a.w1": 0.2, "b.experts": None}),
    "int8": replace(LOSSY["int8"], values={"*.w1": 4}),
    "powersgd": replace(LOSSY["powersgd"], values={"b.*": 3}),
}
ALL = {"none": Settings("none", error_feedback=False)} | LOSSY
ALL |= {f"{name} alone": replace(one, error_feedback=False) for name, one in LOSSY.items()}
ALL |= {f"{name} mixed": one for name, one in MIXED.items()}


class Rank:
    """One rank's buckets and compressor, at a step."""

    def __init__(self, settings: Settings) -> None:
        self.step = 0
        self.contents = [
            content_of(index, torch.zeros(sum(map(math.prod, named.values()))), named)
            for index, named in enumerate(BUCKETS)
        ]
        assert dist.group.WORLD is not None
        self.compressor: GradientCompressor = GradientCompressor(
            settings, dist.group.WORLD, 1, lambda: self.step, torch.device("cpu")
        )

    def gradients(self) -> list[Tensor]:
        """Another one on every rank, with a part that is the same at every step."""
        made = []
        for content in self.contents:
            steady = torch.Generator().manual_seed(dist.get_rank())
            fresh = torch.Generator().manual_seed(1_000 * (self.step + 1) + dist.get_rank())
            size = content.flat.shape
            made.append(torch.randn(size, generator=steady) + 0.3 * torch.randn(size, generator=fresh))
        return made

    def go(self) -> tuple[Tensor, Tensor]:
        """One step of all buckets: the averages found, and the true ones."""
        gradients = self.gradients()
        for content, gradient in zip(self.contents, gradients, strict=True):
            content.flat.copy_(gradient)
        together([self.compressor.reduce(content) for content in self.contents])
        self.step += 1
        true = torch.cat(gradients)
        dist.all_reduce(true)
        return torch.cat([content.flat for content in self.contents]), true / dist.get_world_size()

    def left(self) -> Tensor:
        """What all ranks together have not sent yet, as a part of the average."""
        errors = []
        for content in self.contents:
            memory = self.compressor.memory(content)
            mine = torch.zeros_like(content.flat) if memory is None else memory.clone()
            for kept in self.compressor.state(content):
                if kept.kind == "mean":
                    first = kept.part.start + kept.first
                    mine[first : first + len(kept.values)] += dist.get_world_size() * kept.values
            errors.append(mine)
        total = torch.cat(errors)
        dist.all_reduce(total)
        return total / dist.get_world_size()


def together(reductions: list[Reduction]) -> None:
    """As gradient buckets drive them."""
    under_way: list[tuple[Waitable, Reduction]] = []
    for one in reductions:
        under_way += [(waitable, one) for waitable in [next(one, None)] if waitable is not None]
    while under_way:
        round_, under_way = under_way, []
        for waitable, one in round_:
            waitable.wait()
            under_way += [(following, one) for following in [next(one, None)] if following is not None]


def same_everywhere(tensor: Tensor) -> bool:
    first = tensor.clone()
    dist.broadcast(first, 0)
    return torch.equal(first, tensor)


def recorded(rank: Rank) -> Counter[tuple[str, int]]:
    """The collectives of one step, by operation and payload."""
    recorder = CollectiveRecorder(StepTimer(clock_for("cpu")), {})
    gradients = rank.gradients()
    for content, gradient in zip(rank.contents, gradients, strict=True):
        content.flat.copy_(gradient)
    recorder.start()
    together([rank.compressor.reduce(content) for content in rank.contents])
    recorder.stop()
    rank.step += 1
    return Counter((call.operation, call.bytes) for call in recorder.take())


def formula(rank: Rank) -> Counter[tuple[str, int]]:
    return Counter(
        (message.operation, message.bytes)
        for content in rank.contents
        for message in rank.compressor.messages(content)
    )


def check_every_method(_: int, chosen: dict[str, Settings]) -> dict[str, dict[str, Any]]:
    """What is asked of each method below, on one set of ranks."""
    found = {}
    for name, settings in chosen.items():
        rank = Rank(settings)
        averages, trues = zip(*(rank.go() for _ in range(6)), strict=True)
        sent, due, left = torch.stack(averages).sum(0), torch.stack(trues).sum(0), rank.left()
        found[name] = {
            "same": all(map(same_everywhere, averages)),
            "sent": recorded(rank),
            "formula": formula(rank),
            "first": float((averages[0] - trues[0]).norm() / trues[0].norm()),
            "lost": float((sent + left - due).norm() / due.norm()),
        }
    return found


@pytest.fixture(scope="module", params=[2, 4])
def found(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """Of rank 0; the ranks themselves tell whether they agree."""
    of_ranks = on_ranks(request.param, check_every_method, ALL)
    for name in ALL:
        assert all(one[name]["same"] for one in of_ranks), name
        assert all(one[name]["sent"] == of_ranks[0][name]["sent"] for one in of_ranks), name
    first: dict[str, dict[str, Any]] = of_ranks[0]
    return first


@pytest.mark.parametrize("name", ALL)
def test_what_is_sent_is_what_the_formula_says(found: dict[str, dict[str, Any]], name: str) -> None:
    assert found[name]["sent"] == found[name]["formula"]


@pytest.mark.parametrize("name", [*FED_BACK, *(f"{name} mixed" for name in MIXED)])
def test_what_was_not_sent_is_remembered(found: dict[str, dict[str, Any]], name: str) -> None:
    """All averages and what the ranks still hold back are the sum of all gradients."""
    assert found[name]["first"] > 1e-5, "nothing is left out: the test shows nothing"
    assert found[name]["lost"] < 1e-5


@pytest.mark.parametrize("name", FED_BACK)
def test_without_memory_it_is_lost(found: dict[str, dict[str, Any]], name: str) -> None:
    assert found[f"{name} alone"]["lost"] > 1e-4


@pytest.mark.parametrize("name", CASTS)
def test_sums_of_casts_are_rounded_on_their_way(found: dict[str, dict[str, Any]], name: str) -> None:
    """Which no rank can remember: half a unit in the last place for each rank and step is what may be lost."""
    bits = {"fp16": 11, "bf16": 8}[name]
    for one in (name, f"{name} alone"):
        assert found[one]["lost"] < 2**-bits


def test_every_method_sends_less_than_the_plain_one(found: dict[str, dict[str, Any]]) -> None:
    """By payload; the formulas of each are tested where their codecs are."""
    plain = 2 * sum(size for _, size in found["none"]["formula"].elements())
    for name in LOSSY:
        factor = {"all_reduce": 2, "all_gather": 1, "all_to_all": 1}
        sent = sum(factor[operation] * size for operation, size in found[name]["formula"].elements())
        assert sent < 0.7 * plain, name


def random_average(_: int) -> list[float]:
    """Distance of the mean of many averages of one gradient from the truth, after 100 and after 1,600 steps."""
    rank = Rank(replace(LOSSY["randomk"], error_feedback=False))
    content, found, total = rank.contents[0], [], torch.zeros_like(rank.contents[0].flat)
    gradient = rank.gradients()[0]
    true = gradient.clone()
    dist.all_reduce(true)
    true /= dist.get_world_size()
    for rank.step in range(1, 1601):
        content.flat.copy_(gradient)
        together([rank.compressor.reduce(content)])
        total += content.flat
        if rank.step in (100, 1600):
            found.append(float((total / rank.step - true).norm() / true.norm()))
    return found


def test_random_k_without_memory_has_no_bias() -> None:
    few, many = on_ranks(2, random_average)[0]
    assert many < 0.35 * few


def repeated(_: int, name: str) -> bool:
    """Whether two compressors with the same seed give the same bits, and one at another step others."""
    one, again, later = (Rank(LOSSY[name]) for _ in range(3))
    later.step = 5
    for rank in (one, again, later):
        for content, gradient in zip(rank.contents, one.gradients(), strict=True):
            content.flat.copy_(gradient)
        together([rank.compressor.reduce(content) for content in rank.contents])
    first, second, third = (
        torch.cat([content.flat for content in rank.contents]) for rank in (one, again, later)
    )
    return torch.equal(first, second) and not torch.equal(first, third)


@pytest.mark.parametrize("name", ["int8", "randomk"])
def test_random_methods_repeat_a_step(name: str) -> None:
    assert all(on_ranks(2, repeated, name))


def changed(_: int) -> list[float]:
    """The lost share of gradients over changes of method and value; then that with a last plain step."""
    rank, steps = Rank(LOSSY["sign"]), list[tuple[Tensor, Tensor]]()
    chosen = [LOSSY[name] for name in ("sign", "int4", "powersgd", "topk", "randomk", "sign")]
    for settings in (*chosen, replace(LOSSY["topk"], value=0.5)):
        rank.compressor.use(settings)
        steps += [rank.go(), rank.go()]
    lossy = lost(steps, rank.left())
    rank.compressor.use(ALL["none"])
    steps.append(rank.go())
    return [lossy, lost(steps, torch.zeros(()))]


def lost(steps: list[tuple[Tensor, Tensor]], left: Tensor) -> float:
    sent, due = (torch.stack(column).sum(0) for column in zip(*steps, strict=True))
    return float((sent + left - due).norm() / due.norm())


def test_another_method_sends_what_the_last_one_kept() -> None:
    """The plain one sends all of it at once."""
    for lossy, exact in on_ranks(4, changed):
        assert lossy < 1e-5
        assert exact < 1e-5


def moved(_: int) -> float:
    """The lost share of gradients when all parts come to lie in one bucket."""
    rank = Rank(LOSSY["sign"])
    sent, due = rank.go()
    before = rank.contents
    named = {part.name: part.shape for content in reversed(before) for part in content.parts}
    flat = torch.zeros(sum(len(content.flat) for content in before))
    rank.contents = [content_of(0, flat, named)]
    rank.compressor.move(before, rank.contents)
    left = rank.left()
    order = [view(left, rank.contents[0], part.name) for content in before for part in content.parts]
    return float((sent + torch.cat(order) - due).norm() / due.norm())


def view(flat: Tensor, content: Content, name: str) -> Tensor:
    part = next(part for part in content.parts if part.name == name)
    return flat[part.start : part.stop]


def test_what_was_left_out_moves_to_other_buckets() -> None:
    assert max(on_ranks(2, moved)) < 1e-5
