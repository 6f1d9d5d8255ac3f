"""Outer loops over a few weights on real ranks, where every number can be said: against formulas, and what the gap and
the clip are for.

Each rank descends on (x - b)^2 / 2 with a goal b of its own; the mean of the goals is where all together should end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.config.run_config import RunConfig
from tests.support.engine.local_sgd_runs import context_of, loop_of
from tests.support.ranks import on_ranks
from tests.support.runs import small

RATE, ROUNDS, RANKS = 0.5, 24, 2
GOALS = torch.tensor([[1.0, -2.0, 3.0, 0.5, 2.0], [3.0, 2.0, 1.0, -0.5, 0.0]])
#: From here the weights start, as one parameter of a first layer and one of the head.
START = (torch.tensor([10.0, -10.0]), torch.tensor([5.0, 0.0, -5.0]))


def descend(rank: int, config: RunConfig, folder: str, spike: float = 0.0) -> list[list[float]]:
    """The weights after every step; in step 20 the first rank's gradient is off by ``spike``."""
    weights = {
        name: nn.Parameter(start.clone()) for name, start in zip(("blocks.0.w", "head"), START, strict=True)
    }
    context, goals = context_of(rank, config, Path(folder)), GOALS[rank].split([2, 3])
    outer, seen = loop_of(context, weights), []
    for step in range(ROUNDS * config.outer.period):
        context.timer.begin(step)
        with torch.no_grad():
            for weight, goal in zip(weights.values(), goals, strict=True):
                weight.sub_(RATE * (weight - goal + spike * (rank == 0 and step == 20)))
        outer.step()
        context.timer.end()
        seen.append(torch.cat(list(weights.values())).tolist())
    outer.finish()
    context.writer.close()
    return [*seen, torch.cat(list(weights.values())).tolist()]


def descended(tmp_path: Path, spike: float = 0.0, **values: Any) -> list[Tensor]:
    """The weights of each rank after every step, [steps + 1, 5]; the last ones are the finished model's."""
    config = small(parallel__dp=RANKS, **{f"outer__{key}": value for key, value in values.items()})
    return [torch.tensor(found) for found in on_ranks(RANKS, descend, config, str(tmp_path), spike)]


def together() -> Tensor:
    """What gradient descent on the mean of all gradients does, step by step."""
    weights, goal, seen = torch.cat(START), GOALS.mean(0), []
    for _ in range(ROUNDS):
        weights = weights - RATE * (weights - goal)
        seen.append(weights)
    return torch.stack(seen)


@pytest.mark.parametrize("method", ["local", "diloco"])
def test_rounds_of_one_step_are_data_parallelism_where_steps_are_linear(tmp_path: Path, method: str) -> None:
    """With plain SGD inside, the mean of the steps is the step of the mean; to the rounding of the sums."""
    values = {} if method == "local" else {"learning_rate": 1.0, "momentum": 0.0}
    for found in descended(tmp_path, method=method, period=1, **values):
        assert torch.allclose(found[:-1], together(), rtol=0, atol=2e-6)


def test_local_steps_are_averages_to_the_bit(tmp_path: Path) -> None:
    one, other = descended(tmp_path, method="local", period=3)
    assert torch.equal(one[2::3], other[2::3])
    assert not torch.equal(one[1], other[1])
    weights = [torch.cat(START)] * RANKS
    for step in range(6):
        weights = [weight - RATE * (weight - goal) for weight, goal in zip(weights, GOALS, strict=True)]
        if step % 3 == 2:
            weights = [(weights[0] + weights[1]) / 2] * RANKS
        assert torch.equal(one[step], weights[0])
        assert torch.equal(other[step], weights[1])


def test_diloco_follows_its_formula(tmp_path: Path) -> None:
    (found, *_) = descended(tmp_path, method="diloco", period=2, learning_rate=0.7, momentum=0.9)
    anchor, momentum, kept = torch.cat(START).double(), torch.zeros(5).double(), (1 - RATE) ** 2
    for round_ in range(ROUNDS):
        pull = anchor - (kept * anchor + (1 - kept) * GOALS.double().mean(0))
        momentum = 0.9 * momentum + pull
        anchor = anchor - 0.7 * (pull + 0.9 * momentum)
        assert torch.allclose(found[2 * round_ + 1].double(), anchor, atol=1e-4)


@pytest.mark.parametrize("variant", ["paper", "delayed", "keep_local"])
def test_co2_follows_its_formula(tmp_path: Path, variant: str) -> None:
    values = {"learning_rate": 0.6, "momentum": 0.3, "clip": 2.0, "gap": "scalar", "variant": variant}
    found = descended(tmp_path, method="co2", period=2, **values)
    kept, goals, start = (1 - RATE) ** 2, GOALS.double(), torch.cat(START).double()
    begun, here, before = [start, start], start, start
    momentum, typical, rounds, means = torch.zeros(5).double(), 0.0, 0, list[Tensor]()
    for round_ in range(ROUNDS):
        ends = [kept * one + (1 - kept) * goal for one, goal in zip(begun, goals, strict=True)]
        progress = [end - one for end, one in zip(ends, begun, strict=True)]
        new = here
        if means:
            distance = float((here - before).norm())
            rounds, typical = (
                (rounds + 1, typical + (distance - typical) / (rounds + 1)) if distance else (rounds, typical)
            )
            gap = 1 + (distance / typical if typical else 0.0)
            pull = -means[-1] if variant == "keep_local" else before - means[-1]
            momentum = (0.3 * momentum + pull / gap).clamp(-2.0, 2.0)
            new = (before if variant == "paper" else here) - 0.6 * momentum
        means.append(sum(progress if variant == "keep_local" else ends, torch.zeros(5)) / RANKS)
        begun = [new + (own if variant == "keep_local" else 0.0) for own in progress]
        before, here = here, new
        for rank in range(RANKS):
            assert torch.allclose(found[rank][2 * round_ + 1].double(), begun[rank], atol=1e-4), round_


def test_all_ranks_end_with_one_model(tmp_path: Path) -> None:
    for values in ({"method": "co2"}, {"method": "streaming", "fragments": 2, "period": 4, "mixing": 0.5}):
        one, other = descended(tmp_path, **{"period": 4} | values)
        assert torch.equal(one[-1], other[-1]), values
        assert not torch.equal(one[-2], other[-2]), values


def test_streaming_mixes_what_was_done_meanwhile(tmp_path: Path) -> None:
    """The head is the last fragment: sent after step 3 of each round, taken over a step later."""
    values = {"fragments": 2, "period": 4, "overlap": 1, "learning_rate": 1.0, "momentum": 0.0}
    found = descended(tmp_path, method="streaming", mixing=0.25, **values)
    sent = (found[0][3, 2:] + found[1][3, 2:]) / 2
    for rank in range(RANKS):
        stepped = found[rank][3, 2:] - RATE * (found[rank][3, 2:] - GOALS[rank, 2:])
        assert torch.allclose(found[rank][4, 2:], 0.25 * stepped + 0.75 * sent, atol=1e-6)


def test_without_the_gap_a_large_outer_step_diverges(tmp_path: Path) -> None:
    """A step of h times the way to the goal, a round late, grows without end from h = 1 on; divided by two it holds."""
    values = {"method": "co2", "variant": "delayed", "period": 6, "learning_rate": 1.5, "clip": None}
    goal = GOALS.mean(0)
    far = {
        gap: float((descended(tmp_path, gap=gap, **values)[0][-1] - goal).norm())
        for gap in ("none", "scalar", "tensor", "element")
    }
    assert far["none"] > 100
    assert all(distance < 15 for gap, distance in far.items() if gap != "none"), far


def test_without_the_clip_one_bad_gradient_throws_the_model_away(tmp_path: Path) -> None:
    values = {"method": "co2", "variant": "delayed", "period": 4, "learning_rate": 0.5, "momentum": 0.2}
    goal = GOALS.mean(0)

    def worst(clip: float | None) -> float:
        found = descended(tmp_path, 1e6, **values, clip=clip)[0]
        return float((found[30:] - goal).norm(dim=1).max())

    assert worst(None) > 1e4
    assert worst(2.0) < 30
