"""Experts on several real ranks compute what one process computes on all their tokens, and send what is said."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.channel import Channel
from engine.config.formulas.expert_rows import Format, bucket_count
from engine.config.layout import Layout
from engine.model.axes import LocalExperts
from engine.model.experts.mixture import Mixture, MixtureShape
from engine.model.experts.row_buckets import RowBuckets, directions
from engine.parallel.expert import ExpertParallel, Islands
from engine.parallel.tensor import TensorParallel
from profilers.collectives.recorder import CollectiveRecorder
from profilers.steps.clock import CpuClock
from profilers.steps.timer import StepTimer
from tests.support.engine.mixtures import CLOSE, OtherRanks, margins, mixture
from tests.support.engine.sent_bytes import padded_bytes, sorted_bytes
from tests.support.ranks import on_ranks

DROPLESS = MixtureShape(hidden=16, ffn_hidden=24, experts=8, top_k=2, balance_weight=0.5)
CAPACITY = replace(DROPLESS, capacity_factor=0.8)
SEQUENCE, BATCH = 8, 2
TIE = 1e-6


@dataclass(frozen=True)
class Case:
    """A mixture over ranks; ``router`` is random, sends everything to experts 0 and 1, or has 0 and 1 as twins."""

    shape: MixtureShape
    data: int
    ep: int
    tp: int = 1
    dtype: torch.dtype = torch.float32
    router: str = "random"
    sends: Format = "none"
    island: int | None = None
    #: The share of rows that travels, where those that are alike travel as one.
    bucketed: float | None = None

    @property
    def layout(self) -> Layout:
        return Layout(dp=self.data, tp=self.tp, ep=self.ep, ep_island=self.island)

    def module(self, tp: Any = None, ep: Any = None, data: Any = None) -> Mixture:
        module = mixture(self.shape, tp, ep, data)
        weight = module.router.weight
        with torch.no_grad():
            if self.router == "first":
                weight[2:], weight[:2] = 0.0, 10.0
            elif self.router == "twins":
                weight[1] = weight[0]
        if self.bucketed is not None:
            turned = directions(self.shape.hidden, 0)
            module.buckets = RowBuckets(self.bucketed, True, turned, self.tp if tp else 1)
            module.load.on = True
        module.balance_scale = 0.25
        return module

    def tokens(self, seed: int) -> Tensor:
        """[sequence, batch of all data ranks, hidden]."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(SEQUENCE, BATCH * self.data, self.shape.hidden, generator=generator)
        return (x.abs() if self.router == "first" else x).to(self.dtype)


CASES = {
    "ep2": Case(DROPLESS, data=2, ep=2),
    "ep2-capacity": Case(CAPACITY, data=2, ep=2),
    "ep2-top1-one-expert-a-rank": Case(replace(DROPLESS, experts=2, top_k=1), data=2, ep=2),
    "ep2-idle-rank": Case(DROPLESS, data=2, ep=2, router="first"),
    "ep2-idle-rank-capacity": Case(CAPACITY, data=2, ep=2, router="first"),
    "dp2": Case(CAPACITY, data=2, ep=1),
    "ep4": Case(DROPLESS, data=4, ep=4),
    "ep4-capacity": Case(CAPACITY, data=4, ep=4),
    "ep4-idle-ranks": Case(DROPLESS, data=4, ep=4, router="first"),
    "ep2-edp2": Case(DROPLESS, data=4, ep=2),
    "ep2-tp2": Case(DROPLESS, data=2, ep=2, tp=2),
    "ep2-tp2-capacity": Case(CAPACITY, data=2, ep=2, tp=2),
    "ep2-tp2-idle-ranks": Case(DROPLESS, data=2, ep=2, tp=2, router="first"),
    "ep6": Case(replace(DROPLESS, experts=12), data=6, ep=6),
}
BF16 = {
    "bf16": Case(DROPLESS, data=2, ep=2, dtype=torch.bfloat16),
    "bf16-capacity": Case(CAPACITY, data=2, ep=2, dtype=torch.bfloat16),
}
TWINS = {"twins": Case(replace(DROPLESS, top_k=1), data=2, ep=2, router="twins")}
COARSE = {
    "int8": Case(DROPLESS, data=2, ep=2, sends="int8"),
    "int8-capacity": Case(CAPACITY, data=2, ep=2, sends="int8"),
    "int8-idle-rank": Case(DROPLESS, data=2, ep=2, router="first", sends="int8"),
    "int8-of-bf16": Case(DROPLESS, data=2, ep=2, dtype=torch.bfloat16, sends="int8"),
    "sent-in-bf16": Case(DROPLESS, data=2, ep=2, sends="bf16"),
}
INT8_OF_FOUR = {"int8-ep4": Case(DROPLESS, data=4, ep=4, sends="int8")}
STRAIGHT = CASES | BF16 | TWINS | COARSE | INT8_OF_FOUR
#: Rows go in two stages, between two islands.
ISLANDS = {
    f"{name}-islands": replace(STRAIGHT[name], island=STRAIGHT[name].ep // 2)
    for name in ("ep4", "ep4-capacity", "ep4-idle-ranks", "int8-ep4", "ep6")
}
#: Buckets of one row each, and of more.
ALONE = {
    f"{name}-alone": replace((STRAIGHT | ISLANDS)[name], bucketed=1.0)
    for name in ("ep2", "ep2-tp2", "ep4-idle-ranks", "ep4-islands", "int8", "bf16")
}
BUCKETED = {
    f"{name}-bucketed": replace((STRAIGHT | ISLANDS)[name], bucketed=0.4)
    for name in ("ep2", "ep2-tp2", "ep4", "int8", "ep4-islands")
}
ALL = STRAIGHT | ISLANDS | ALONE | BUCKETED


class Posted:
    """A group's backend, which counts the messages that it is given for ranks of the other half."""

    def __init__(self, backend: Any, group: Any) -> None:
        self._backend, half = backend, dist.get_world_size() // 2
        here = dist.get_rank() // half
        self._is_away = [other // half != here for other in dist.get_process_group_ranks(group)]
        self.away = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> Any:
        self.away += self._is_away[peer]
        return self._backend.send(tensors, peer, tag)

    def alltoall_base(self, *arguments: Any) -> Any:
        """Equal parts, one to each rank."""
        self.away += sum(self._is_away)
        return self._backend.alltoall_base(*arguments)


class Counting(Channel):
    """Counts the messages that leave this rank for the other of two islands."""

    def __init__(self, group: Any, device: torch.device) -> None:
        super().__init__(group, device)
        self._backend = Posted(self._backend, group)

    @property
    def away(self) -> int:
        found: int = self._backend.away
        return found


def channel(layout: Layout, name: str, rank: int) -> Counting | None:
    """This rank's group of a kind; None if it is alone in it."""
    mine = None
    for members in layout.groups(name):
        group = dist.new_group(members) if len(members) > 1 else None
        if rank in members and group is not None:
            mine = Counting(group, torch.device("cpu"))
    return mine


def layers(rank: int, cases: list[Case]) -> list[dict[str, Any]]:
    """Forward and backward of each case on one rank."""
    return [layer(rank, case) for case in cases]


def layer(rank: int, case: Case) -> dict[str, Any]:
    ep, tp, data = (channel(case.layout, name, rank) for name in ("ep", "tp", "data"))
    inside, between = (channel(case.layout, name, rank) for name in ("ep_island", "ep_between"))
    islands = Islands(inside, between) if case.island and inside and between else None
    experts = ExpertParallel(ep, case.sends, islands) if ep else LocalExperts()
    module = case.module(TensorParallel(tp), experts, data)
    place = case.layout.coordinates(rank).dp
    x, target = (case.tokens(seed).unflatten(1, (case.data, -1))[:, place] for seed in (1, 2))
    recorder = CollectiveRecorder(StepTimer(CpuClock()), {})
    recorder.start()
    result = results(module, x, target)
    recorder.stop()
    result["away"] = sum(one.away for one in (ep, inside, between) if one)
    return result | {"calls": [(call.operation, call.bytes, call.blocking) for call in recorder.take()]}


def results(module: Mixture, x: Tensor, target: Tensor) -> dict[str, Any]:
    """The loss is the mean over these tokens, as a rank's is."""
    x = x.clone().requires_grad_()
    out = module(x)
    ((out.float() * target.float()).sum() / (x.shape[0] * x.shape[1])).backward()
    assert module.report is not None and module.report.balance_loss is not None and x.grad is not None
    found = {"out": out.detach().float(), "x": x.grad.float(), "loss": module.report.balance_loss}
    found |= {"counts": module.report.tokens_per_expert}
    if module.report.bucketed is not None:
        found |= {"buckets": module.report.bucketed[0].long()}
    found |= {
        "dropped": torch.zeros(()) if module.report.dropped_share is None else module.report.dropped_share
    }
    found |= {name.split(".")[0]: value.grad for name, value in module.named_parameters()}
    with torch.no_grad():
        routing = module.router(x.flatten(0, 1))
    shape = (*x.shape[:2], -1)
    return found | {"chosen": routing.experts.view(shape), "margins": margins(routing).view(shape)}


@cache
def measured(world_size: int) -> dict[str, list[dict[str, Any]]]:
    """Every case of a world size: what each rank found."""
    cases = {name: case for name, case in ALL.items() if case.layout.world_size == world_size}
    by_rank = on_ranks(world_size, layers, list(cases.values()))
    return {name: [found[place] for found in by_rank] for place, name in enumerate(cases)}


def ranks_of(name: str) -> list[dict[str, Any]]:
    return measured(ALL[name].layout.world_size)[name]


@cache
def reference(name: str) -> dict[str, Any]:
    """One process on the tokens of all data ranks; under a capacity it groups them as the ranks do."""
    case = ALL[name]
    module = case.module()
    module.token_groups = torch.arange(case.data).repeat_interleave(BATCH).expand(SEQUENCE, -1)
    return results(module, case.tokens(1), case.tokens(2))


def joined(name: str) -> dict[str, Any]:
    """What the ranks hold, summed where it is partial over tp and averaged over data ranks as the engine does."""
    case, found = ALL[name], ranks_of(name)
    rows = [found[first : first + case.tp] for first in range(0, len(found), case.tp)]
    whole = {
        key: torch.cat([torch.stack([rank[key] for rank in row]).sum(dim=0) for row in rows], dim=1)
        for key in ("out", "x")
    }
    whole["x"] /= case.data
    whole |= {key: torch.cat([row[0][key] for row in rows], dim=1) for key in ("chosen", "margins")}
    whole["router"] = torch.stack([rank["router"] for rank in found]).sum(dim=0) / case.data
    whole |= {key: torch.stack([row[0][key] for row in rows]).mean(dim=0) for key in ("loss", "dropped")}
    whole["counts"] = torch.stack([row[0]["counts"] for row in rows]).sum(dim=0)
    for key, dim in (("gate", 1), ("up", 1), ("down", 2)):
        slices = torch.stack([torch.cat([rank[key] for rank in row], dim) for row in rows])
        whole[key] = slices.unflatten(0, (-1, case.ep)).sum(dim=0).flatten(0, 1) / case.data
    return whole


@pytest.mark.parametrize("name", CASES)
def test_ranks_equal_one_process(name: str) -> None:
    expected, found = reference(name), joined(name)
    if CASES[name].router == "random":
        assert float(expected["margins"].min()) > TIE, "a tie: the comparison needs another seed"
    assert torch.equal(found["counts"], expected["counts"])
    assert torch.equal(found["chosen"], expected["chosen"])
    for key in ("out", "x", "router", "gate", "up", "down", "loss", "dropped"):
        torch.testing.assert_close(
            found[key], expected[key], msg=lambda text, key=key: f"{key}: {text}", **CLOSE
        )


@pytest.mark.parametrize("name", ["ep2-capacity", "ep4-capacity", "ep2-tp2-capacity", "dp2"])
def test_capacity_cases_do_drop(name: str) -> None:
    assert 0.05 < float(reference(name)["dropped"]) < 0.5


@pytest.mark.parametrize("name", [name for name in CASES if "idle" in name])
def test_a_rank_without_tokens_has_zero_gradients_and_ends(name: str) -> None:
    idle = [rank for rank in ranks_of(name) if not rank["gate"].any()]
    assert len(idle) == len(ranks_of(name)) * (CASES[name].ep - 1) // CASES[name].ep
    assert all(not rank[key].any() for rank in idle for key in ("gate", "up", "down"))


@pytest.mark.parametrize("name", BF16)
def test_bf16_is_close_to_one_process(name: str) -> None:
    expected, found = reference(name), joined(name)
    assert torch.equal(found["chosen"], expected["chosen"])
    for key in ("out", "x", "router", "gate", "up", "down"):
        error = float((found[key] - expected[key]).norm() / expected[key].norm())
        assert error < 0.01, (key, error)


@pytest.mark.parametrize("name", COARSE)
def test_coarse_tokens_are_close_to_one_process(name: str) -> None:
    expected, found = reference(name), joined(name)
    assert torch.equal(found["chosen"], expected["chosen"])
    for key in ("out", "x", "router", "gate", "up", "down"):
        error = float((found[key] - expected[key]).norm() / expected[key].norm())
        assert error < 0.02, (key, error)
    assert not torch.allclose(found["out"], expected["out"], rtol=1e-5), "nothing was rounded"


def test_ranks_may_differ_only_where_routing_is_tied() -> None:
    expected, found = reference("twins"), joined("twins")
    tied = expected["margins"].squeeze(-1) < TIE
    alike = (found["chosen"] == expected["chosen"]).all(dim=-1)
    assert bool(tied.any()) and not bool(tied.all())
    assert bool((alike | tied).all())
    torch.testing.assert_close(found["out"][alike], expected["out"][alike], **CLOSE)


@pytest.mark.parametrize("name", ISLANDS)
def test_two_stages_bring_the_same_rows_with_fewer_messages_between_islands(name: str) -> None:
    """To the bit."""
    straight, staged = ranks_of(name.removesuffix("-islands")), ranks_of(name)
    for one, other in zip(straight, staged, strict=True):
        for key in ("out", "x", "router", "gate", "up", "down", "counts"):
            assert torch.equal(one[key], other[key]), key
    places = len(staged) // 2
    for island in (slice(0, places), slice(places, None)):
        sent = [sum(rank["away"] for rank in ranks[island]) for ranks in (straight, staged)]
        assert sent == messages(name, places)


def messages(name: str, places: int) -> list[int]:
    """That an island of so many ranks sends to the other one in a layer, straight and in two stages: for each of four
    or five all-to-alls one for each pair of ranks, or for each place. Where all rows are for rank 0, two of them have
    rows from one island to it, and two bring them back.
    """
    if "idle" in name:
        return [places**2 + 2 * places, places + 2]
    calls = 4 if "capacity" in name else 5
    return [calls * places**2, calls * places]


@pytest.mark.parametrize("name", [name for name in STRAIGHT if STRAIGHT[name].ep > 1])
def test_the_exchange_sends_the_bytes_of_its_formula(name: str) -> None:
    case, size = ALL[name], torch.empty((), dtype=ALL[name].dtype).itemsize
    shape, tokens = case.shape, SEQUENCE * BATCH
    for rank, found in enumerate(ranks_of(name)):
        sizes = [count for operation, count, _ in found["calls"] if operation == "all_to_all"]
        assert all(blocking for _, _, blocking in found["calls"])
        capacity = shape.capacity(tokens)
        if capacity is None:
            place = case.layout.coordinates(rank).dp
            sharers = ranks_of(name)[rank % case.tp :: case.tp]
            first = place // case.ep * case.ep
            chosen = torch.stack([other["counts"] for other in sharers[first : first + case.ep]]).sum(dim=0)
            received = int(chosen.unflatten(0, (case.ep, -1)).sum(dim=1)[place % case.ep])
            assert len(sizes) == 5
            formula = sorted_bytes(
                tokens * shape.top_k, received, shape.hidden, shape.experts, size, case.sends
            )
        else:
            assert len(sizes) == 4
            formula = padded_bytes(capacity, shape.hidden, shape.experts, size, case.sends)
        assert sum(sizes) == formula
        balance = [count for operation, count, _ in found["calls"] if operation == "all_reduce"]
        assert balance == [8 * shape.experts]


@pytest.mark.parametrize("name", ALONE)
def test_buckets_of_one_row_are_rows_as_they_were(name: str) -> None:
    """To the bit, in both directions."""
    for one, other in zip(ranks_of(name.removesuffix("-alone")), ranks_of(name), strict=True):
        for key in ("out", "x", "router", "gate", "up", "down", "counts"):
            assert torch.equal(one[key], other[key]), key
        assert torch.equal(other["counts"], other["buckets"])


@pytest.mark.parametrize("name", [name for name in BUCKETED if "int8" not in name])
def test_buckets_on_ranks_are_those_of_each_ranks_tokens_in_one_process(name: str) -> None:
    case, found = ALL[name], joined(name)
    for place in range(case.data):
        module = case.module(data=OtherRanks(found["counts"] - ranks_of(name)[place * case.tp]["counts"]))
        x, target = (case.tokens(seed).unflatten(1, (case.data, -1))[:, place] for seed in (1, 2))
        expected = results(module, x, target)
        mine = slice(place * BATCH, (place + 1) * BATCH)
        for key, scale in (("out", 1), ("x", 1 / case.data)):
            torch.testing.assert_close(found[key][:, mine], expected[key] * scale, **CLOSE)
        assert torch.equal(ranks_of(name)[place * case.tp]["buckets"], expected["buckets"])


@pytest.mark.parametrize("name", BUCKETED)
def test_buckets_send_their_share_of_the_bytes(name: str) -> None:
    case, size = ALL[name], torch.empty((), dtype=ALL[name].dtype).itemsize
    shape, rows = case.shape, SEQUENCE * BATCH * case.shape.top_k
    into = bucket_count(rows, shape.experts, 0.4)
    assert into == pytest.approx(0.4 * rows, abs=1)
    for rank, found in enumerate(ranks_of(name)):
        assert int(found["buckets"].sum()) == into
        sizes = [count for operation, count, _ in found["calls"] if operation == "all_to_all"]
        if case.island is None:
            place, sharers = case.layout.coordinates(rank).dp, ranks_of(name)[rank % case.tp :: case.tp]
            sent = torch.stack([other["buckets"] for other in sharers]).sum(dim=0)
            received = int(sent.unflatten(0, (case.ep, -1)).sum(dim=1)[place])
            assert sum(sizes) == sorted_bytes(into, received, shape.hidden, shape.experts, size, case.sends)
