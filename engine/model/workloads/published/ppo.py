"""PPO (arXiv 1707.06347) over dp ranks, each of which has its share of the environments: gradients are averaged, and
advantages are scaled by all ranks' mean and deviation, so that an update is that of one process with all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from engine.comm import host_values
from engine.config.errors import InputError
from engine.model.workload import StepInput, StepResult, StepSetting
from engine.model.workloads.published.options import needs_adamw

_DISCOUNT, _LAMBDA, _CLIP, _ENTROPY, _VALUE, _NORM, _EPSILON = 0.99, 0.95, 0.1, 0.01, 0.5, 0.5, 1e-5


class Environment(Protocol):
    """What is learned in."""

    def reset(self, number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A new episode, drawn from a number: what is seen [features]."""

    def step(self, action: int) -> tuple[np.ndarray[Any, np.dtype[np.float32]], float, bool]:
        """What is seen then, the reward, and whether the episode is over."""


@dataclass(frozen=True)
class Rule:
    """How many environments there are, their steps a rollout, how often each is learned from, and how one is made."""

    environments: int
    rollout: int
    epochs: int
    make_environment: Callable[[], Environment]


class Rollout(NamedTuple):
    """[steps, environments, ...] of one rank."""

    seen: Tensor
    actions: Tensor
    log_chances: Tensor
    advantages: Tensor
    returns: Tensor


class Ppo:
    """One minibatch a step; when all of a rollout was used, a new one."""

    def __init__(self, setting: StepSetting, rule: Rule) -> None:
        needs_adamw(setting, "PPO moves parameters by an Adam of its own")
        self._setting, self._rule = setting, rule
        self._ranks = 1 if setting.channel is None else setting.channel.size
        rank, batch = (
            0 if setting.channel is None else setting.channel.rank,
            setting.config.batch.global_batch,
        )
        self._times = batch // rule.environments
        if rule.environments % self._ranks or batch % rule.environments or rule.rollout % max(1, self._times):
            remedy = (
                f"has to be a multiple of model.options.environments={rule.environments}, which dp divides, and that "
                f"many times divide rollout={rule.rollout}"
            )
            raise InputError("batch.global_batch", batch, remedy)
        environments = rule.environments // self._ranks
        self._numbers = range(rank * environments, rank * environments + environments)
        self._random = [
            np.random.default_rng([setting.config.train.seed, number]) for number in self._numbers
        ]
        self._environments: list[Environment] = []
        self._seen: list[np.ndarray[Any, np.dtype[np.float32]]] = []
        self._optimizer: torch.optim.Optimizer | None = None
        self._rollout: Rollout | None = None
        self._order: list[Tensor] = []

    def take(self, inputs: StepInput) -> StepResult:
        """Learn from the next minibatch."""
        if not self._order:
            with self._setting.phase("data"):
                self._rollout = self._drive()
            shuffled = torch.Generator().manual_seed(
                self._setting.config.train.seed * 1_000_003 + inputs.step
            )
            for _ in range(self._rule.epochs):
                self._order += torch.randperm(self._rule.rollout, generator=shuffled).split(self._times)
        assert self._rollout is not None
        times = self._order.pop()
        batch = Rollout(*(part[times].flatten(0, 1) for part in self._rollout))
        parameters = list(self._setting.model.parameters())
        with self._setting.phase("forward"):
            loss = self._loss(batch)
        with self._setting.phase("backward"):
            gradients = torch.autograd.grad(loss, parameters)
        flat = self._mean(torch.cat([gradient.flatten() for gradient in gradients]))
        with self._setting.phase("optimizer"):
            norm = self._update(parameters, flat, inputs.rate)
        return StepResult(float(loss.detach()), norm)

    def _loss(self, batch: Rollout) -> Tensor:
        logits, values = self._policy(batch.seen), self._value(batch.seen)
        every = torch.log_softmax(logits, dim=-1)
        chosen = every.gather(1, batch.actions[:, None])[:, 0]
        ratio = (chosen - batch.log_chances).exp()
        advantages = self._normalize(batch.advantages)
        gain = torch.minimum(ratio * advantages, ratio.clamp(1 - _CLIP, 1 + _CLIP) * advantages).mean()
        entropy = -(every.exp() * every).sum(dim=-1).mean()
        return _VALUE * (values - batch.returns).square().mean() - gain - _ENTROPY * entropy

    def _normalize(self, advantages: Tensor) -> Tensor:
        """By mean and deviation over all ranks."""
        wide = advantages.double()
        mean, square = self._mean(torch.stack([wide.mean(), wide.square().mean()]))
        deviation = (square - mean**2).clamp(min=0).sqrt()
        return torch.div(wide - mean, deviation + 1e-8).float()

    def _mean(self, x: Tensor) -> Tensor:
        if self._setting.channel is not None:
            self._setting.channel.all_reduce(x)
        return x / self._ranks

    def _update(self, parameters: list[nn.Parameter], flat: Tensor, rate: float) -> float:
        if self._optimizer is None:
            same = [nn.Parameter(parameter.detach()) for parameter in parameters]
            self._optimizer = torch.optim.Adam(same, rate, eps=_EPSILON)
        (group,) = self._optimizer.param_groups
        group["lr"], norm = rate, float(flat.norm())
        flat = flat * min(1.0, _NORM / (norm + 1e-6))
        for weight, part in zip(
            group["params"], flat.split([parameter.numel() for parameter in parameters]), strict=True
        ):
            weight.grad = part.view_as(weight)
        self._optimizer.step()
        return norm

    @torch.no_grad()
    def _drive(self) -> Rollout:
        """So many steps of each of this rank's environments, by chance as the policy has it."""
        if not self._environments:
            self._environments = [self._rule.make_environment() for _ in self._numbers]
            self._seen = [
                environment.reset(self._draw(n)) for n, environment in enumerate(self._environments)
            ]
        device, steps = self._setting.model.device, list[tuple[Tensor, ...]]()
        for _ in range(self._rule.rollout):
            observations = torch.from_numpy(np.stack(self._seen)).to(device)
            chances = torch.log_softmax(self._policy(observations), dim=-1)
            actions = [
                self._choose(n, row) for n, row in enumerate(host_values.to_host(chances.exp().double()))
            ]
            moved = [self._move(n, action) for n, action in enumerate(actions)]
            taken_actions = torch.tensor(actions, device=device)
            rewards, over = torch.tensor(moved, device=device).unbind(dim=1)
            steps.append(
                (
                    observations,
                    taken_actions,
                    chances.gather(1, taken_actions[:, None])[:, 0],
                    self._value(observations),
                    rewards,
                    over,
                )
            )
        observations, taken_actions, chosen, values, rewards, over = map(
            torch.stack, zip(*steps, strict=True)
        )
        last = self._value(torch.from_numpy(np.stack(self._seen)).to(device))
        advantages = generalized_advantages(values, rewards, over, last)
        return Rollout(observations, taken_actions, chosen, advantages, advantages + values)

    def _move(self, number: int, action: int) -> tuple[float, float]:
        observation, reward, over = self._environments[number].step(action)
        self._seen[number] = self._environments[number].reset(self._draw(number)) if over else observation
        return reward, float(over)

    def _choose(self, number: int, chances: Tensor) -> int:
        """Drawn by the environment's own numbers: no other layout draws otherwise."""
        place = np.searchsorted(chances.cumsum(0).numpy(), self._random[number].random())
        return min(int(place), len(chances) - 1)

    def _draw(self, number: int) -> int:
        return int(self._random[number].integers(1 << 24))

    def _policy(self, observations: Tensor) -> Tensor:
        logits: Tensor = self._setting.model.get_submodule("blocks.0.policy")(observations)
        return logits

    def _value(self, observations: Tensor) -> Tensor:
        values: Tensor = self._setting.model.get_submodule("blocks.0.value")(observations)[:, 0]
        return values


def generalized_advantages(values: Tensor, rewards: Tensor, over: Tensor, last: Tensor) -> Tensor:
    """[steps, environments], from values and rewards of the same shape (arXiv 1506.02438)."""
    advantages, running, after = torch.empty_like(values), torch.zeros_like(last), last
    for step in reversed(range(len(values))):
        goes_on = 1 - over[step]
        surprise = rewards[step] + _DISCOUNT * goes_on * after - values[step]
        running = surprise + _DISCOUNT * _LAMBDA * goes_on * running
        advantages[step], after = running, values[step]
    return advantages
