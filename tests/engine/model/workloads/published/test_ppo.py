"""PPO over ranks updates as one process does with all environments; a missing package is said in one line."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from engine.comm.channel import Channel
from engine.config.errors import InputError
from engine.model.workload import StepInput, StepSetting
from engine.model.workloads.published.driving import workload
from engine.model.workloads.published.ppo import Ppo, Rule, generalized_advantages
from tests.support.ranks import on_ranks
from tests.support.runs import small


class Walk:
    """A place on a line; the sum of steps has to come to 3."""

    def reset(self, number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        self.place, self.steps = number % 3, 0
        return np.array([self.place, 1], np.float32)

    def step(self, action: int) -> tuple[np.ndarray[Any, np.dtype[np.float32]], float, bool]:
        self.place, self.steps = self.place + action - 1, self.steps + 1
        over = self.place >= 3 or self.steps == 7
        return np.array([self.place, 1], np.float32), float(self.place), over


class Model(nn.Module):
    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        heads = {"policy": nn.Linear(2, 3), "value": nn.Linear(2, 1)}
        self.blocks = nn.ModuleList([nn.ModuleDict(heads)])


def learned(rank: int, steps: int, batch: int) -> list[Tensor]:
    channel = Channel(dist.group.WORLD, Model.device) if dist.is_initialized() else None  # type: ignore[arg-type]
    model: Any = Model()
    setting = StepSetting(model, channel, small(batch__global_batch=batch), lambda _: nullcontext())
    ppo = Ppo(setting, Rule(4, 8, 2, Walk))
    for step in range(steps):
        ppo.take(StepInput(step, [], 1e-2, lambda: pytest.fail("the engine's step")))
    return [one.detach().clone() for one in model.parameters()]


def test_two_ranks_update_as_one_process() -> None:
    """Minibatches of eight samples: eight of a first rollout, two of a second one."""
    alone, ranks = learned(0, 10, 8), on_ranks(2, learned, 10, 8)
    for found in ranks:
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-6)
    assert max(float((a - b).abs().max()) for a, b in zip(alone, learned(0, 0, 8), strict=True)) > 1e-3


def test_advantages_of_one_episode_by_hand() -> None:
    """Rewards 1, 2 and 4, of which the second ends an episode; values are 0 but the last one's, 10."""
    rewards, over = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0.0], [1.0], [0.0]])
    found = generalized_advantages(torch.zeros(3, 1), rewards, over, torch.tensor([10.0]))
    assert found.flatten().tolist() == pytest.approx([1 + 0.99 * 0.95 * 2, 2, 4 + 0.99 * 10])


def test_a_minibatch_is_of_whole_steps() -> None:
    with pytest.raises(InputError, match=r"multiple of model\.options\.environments=4"):
        learned(0, 1, 6)


@pytest.mark.skipif(importlib.util.find_spec("highway_env") is not None, reason="highway-env is installed")
def test_without_the_package_it_says_what_to_install() -> None:
    with pytest.raises(InputError, match=r"pip install 'training-workbench\[driving\]'"):
        workload()
