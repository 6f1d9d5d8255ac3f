"""The parts that turn while a run goes: what was summed up and what was left out so far goes on, to the bit."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from engine.config.knobs.catalogue import live_parts
from engine.config.knobs.facts import TURNS
from engine.config.run_config import RunConfig, parse
from engine.parallel.data.averaging import AveragedParameters, SharedParameters
from engine.parallel.data.buckets import GradientBuckets
from engine.parallel.data.replica import mark_parameters
from engine.rank.reconfigure import PARTS
from profilers.steps.clock import clock_for
from profilers.steps.timer import StepTimer
from tests.engine.model.test_activation_memory import Activations, build
from tests.support.ranks import on_ranks


def test_gradients_summed_so_far_move_to_the_new_buckets_and_go_on_there() -> None:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(16, 16)) for _ in range(5)]
    narrow = nn.Parameter(torch.randn(16, 16).bfloat16())
    buckets = GradientBuckets([*weights, narrow], None, bucket_bytes=4 * 256)
    exact = {one: torch.zeros(16, 16) for one in (*weights, narrow)}
    for bucket_bytes in (4 * 256 * 2, 1e9, 4.0, 4 * 256 * 3):
        _backward([*weights, narrow], exact)
        before = {one: view.clone() for one, view in buckets.gradients.items()}
        buckets.rebuild(bucket_bytes)
        assert all(torch.equal(before[one], view) for one, view in buckets.gradients.items())
        size = bucket_bytes // (4 * 256)
        assert len(buckets.buckets) == (6 if size < 2 else -(-6 // min(6, int(size))))
        _backward([*weights, narrow], exact)
        for one, total in exact.items():
            torch.testing.assert_close(buckets.gradients[one], total, rtol=1e-5, atol=1e-6)


def _backward(weights: list[nn.Parameter], exact: dict[nn.Parameter, Tensor]) -> None:
    x = torch.randn(4, 16)
    for weight in weights:
        torch.nn.functional.linear(x.to(weight.dtype), weight).sum().backward()
        fresh = weight.detach().clone().requires_grad_()
        torch.nn.functional.linear(x.to(weight.dtype), fresh).sum().backward()
        assert fresh.grad is not None
        exact[weight] += fresh.grad


def settings(method: str, bucket_mb: float) -> RunConfig:
    compression = {"method": method, "ratio": 0.05, "start_step": 0}
    return parse({"compression": compression, "overlap": {"bucket_mb": bucket_mb}})


def left_out(part: AveragedParameters) -> dict[str, Tensor]:
    return {memory.name: memory.values.clone() for memory in part.memories()}


def reduced(part: AveragedParameters) -> dict[str, Tensor]:
    """The averages of what is in the buckets, which are empty afterwards."""
    part.buckets.arm()
    part.buckets.finish()
    names = {parameter: name for name, parameter in part.shared.parameters.items()}
    found = {names[one]: view.clone() for one, view in part.buckets.gradients.items()}
    part.buckets.clear()
    return found


def nothing_is_lost(rank: int) -> tuple[bool, float, float]:
    """Of a gradient sent in three parts: with top-k, from other buckets with top-k, and as it is."""
    decoder = build(Activations())
    mark_parameters(decoder)
    shared = SharedParameters(dict(decoder.named_parameters()), dist.group.WORLD)
    timer = StepTimer(clock_for("cpu"))
    timer.begin(0)
    part = AveragedParameters(shared, settings("topk", 0.05), timer, 1)
    generator = torch.Generator().manual_seed(rank)
    for gradient in part.buckets.gradients.values():
        gradient.copy_(torch.randn(gradient.shape, generator=generator))
    names = {parameter: name for name, parameter in shared.parameters.items()}
    whole = {names[one]: view.clone() for one, view in part.buckets.gradients.items()}
    parts = [reduced(part)]
    before = left_out(part)
    part.reconfigure(settings("topk", 0.2))
    after = left_out(part)
    same = before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    parts.append(reduced(part))
    part.reconfigure(settings("none", 0.01))
    parts.append(reduced(part))
    largest = missing = 0.0
    for name, values in whole.items():
        dist.all_reduce(values.div_(2))
        missing = max(missing, float((values - parts[0][name]).abs().max()))
        largest = max(largest, float((values - sum(one[name] for one in parts)).abs().max()))
    return same and len(before) > 0, missing, largest


def test_what_compression_left_out_moves_with_the_buckets_and_goes_out_with_the_next_gradient() -> None:
    for same, missing, largest in on_ranks(2, nothing_is_lost):
        assert same
        assert missing > 0.1
        assert largest < 1e-6


def test_every_part_that_turns_says_what_a_turn_costs() -> None:
    assert set(PARTS) == set(TURNS) == set(live_parts().values())
