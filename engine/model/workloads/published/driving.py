"""A small driving stand-in for CaRL (arXiv 2504.17838): PPO on highway-env, by two rewards.

``completion``: the route that a step completes, times factors for soft infractions; hard ones end the episode.
``shaped``: the package's own sum of terms. Both are judged alike, by the route completed on held-out episodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from engine.comm import host_values
from engine.config.errors import InputError
from engine.config.presets import FIELD
from engine.model.workload import Workload
from engine.model.workloads.published.options import require_minimum
from engine.model.workloads.published.ppo import Ppo, Rule

REWARDS = ("completion", "shaped")
#: Vehicles that the policy sees, itself included, and what it sees of each.
_SEEN, _FEATURES, _ACTIONS = 5, 5, 5
#: Seconds of an episode, which takes a step each; metres of a route: at 28 m/s there is time for it.
_SECONDS, _ROUTE = 20, 500.0
#: What a whole route is worth, a collision costs, and a gap of less than a second leaves of a step's reward.
_WORTH, _COLLISION, _CLOSE = 10.0, 1.0, 0.5
#: Held-out episodes have numbers from here on, and are so many.
_HELD_OUT, _JUDGED = 1 << 24, 16


def workload(
    reward: str = "completion",
    environments: int = 8,
    rollout: int = 128,
    epochs: int = 3,
    width: int = 64,
    vehicles: int = 12,
) -> Workload:
    """``batch.global_batch`` is PPO's minibatch: a step of all ``environments`` or several, which dp ranks share.

    Each environment takes ``rollout`` steps, from which the policy learns ``epochs`` times.

    Raises:
        InputError: highway-env is not installed.
        ValueError: the reward is unknown, or a number too small.
    """
    if reward not in REWARDS:
        raise ValueError(f"{reward=}: rewards are {' and '.join(REWARDS)}")
    require_minimum(1, environments=environments, rollout=rollout, epochs=epochs, width=width)
    require_minimum(0, vehicles=vehicles)
    _package()
    rule = Rule(environments, rollout, epochs, lambda: Road(reward, vehicles))
    return Workload(
        name=f"driving, {reward} reward",
        blocks=[lambda: Driver(width, vehicles)],
        batches=Episodes(),
        loss=lambda completed, _: 1 - completed.mean(),
        metric=lambda completed, _: completed.mean(),
        metric_name="route completion",
        step=lambda setting: Ppo(setting, rule).take,
    )


def _package() -> Any:
    try:
        import gymnasium
        import highway_env  # noqa: F401
    except ImportError as error:
        remedy = f"needs highway-env ({error}): pip install 'training-workbench[driving]'"
        raise InputError(FIELD, "driving", remedy) from error
    return gymnasium


@dataclass(frozen=True)
class Episodes:
    """A sample is the number that an episode is drawn from; those of training are drawn by the environments."""

    def training(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        return torch.arange(first, first + count), torch.zeros(count)

    def validation(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """So few that all batches, small and large, are judged by the same."""
        return _HELD_OUT + torch.arange(first, first + count) % _JUDGED, torch.zeros(count)


class Driver(nn.Module):
    """A policy and the value of what it sees; called with numbers of episodes it drives them: [n] -> completed [n]."""

    def __init__(self, width: int, vehicles: int) -> None:
        super().__init__()
        self.vehicles = vehicles
        self._weights, self._driven = b"", dict[int, float]()
        self.policy, self.value = (
            nn.Sequential(
                nn.Linear(_SEEN * _FEATURES, width),
                nn.Tanh(),
                nn.Linear(width, width),
                nn.Tanh(),
                nn.Linear(width, outputs),
            )
            for outputs in (_ACTIONS, 1)
        )

    def forward(self, episodes: Tensor) -> Tensor:
        """The likeliest action at each step; what was driven by the same weights is not driven again."""
        flat = nn.utils.parameters_to_vector(self.parameters()).detach()
        weights = host_values.to_host(flat).numpy().tobytes()
        if weights != self._weights:
            self._weights, self._driven = weights, {}
        numbers = [int(number) for number in episodes]
        road = Road("completion", self.vehicles)
        for number in set(numbers) - set(self._driven):
            self._driven[number] = self._drive(road, number)
        return torch.tensor([self._driven[number] for number in numbers])

    def _drive(self, road: Road, number: int) -> float:
        observation, over = road.reset(number), False
        while not over:
            action = int(self.policy(torch.from_numpy(observation)).argmax())
            observation, _, over = road.step(action)
        return road.completed


class EnvironmentStep(NamedTuple):
    """What a step led to."""

    seen: np.ndarray[Any, np.dtype[np.float32]]
    reward: float
    over: bool


class Road:
    """A motorway of highway-env with a route straight on."""

    def __init__(self, reward: str, vehicles: int) -> None:
        config = {
            "lanes_count": 3,
            "vehicles_count": vehicles,
            "duration": _SECONDS,
            "simulation_frequency": 5,
            "policy_frequency": 1,
            "observation": {"type": "Kinematics", "vehicles_count": _SEEN},
        }
        self._env = _package().make("highway-fast-v0", config=config, disable_env_checker=True)
        self._shaped, self._start, self.completed = reward == "shaped", 0.0, 0.0

    def reset(self, number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A new episode, drawn from a number."""
        observation, _ = self._env.reset(seed=number)
        self._start, self.completed = float(self._vehicle.position[0]), 0.0
        return self._flat(observation)

    def step(self, action: int) -> EnvironmentStep:
        """A second."""
        observation, shaped, terminated, truncated, _ = self._env.step(action)
        vehicle, before = self._vehicle, self.completed
        self.completed = min(1.0, (float(vehicle.position[0]) - self._start) / _ROUTE)
        hard = bool(vehicle.crashed or not vehicle.on_road)
        over = bool(terminated or truncated or hard or self.completed >= 1)
        reward = _WORTH * (self.completed - before) * self._factor() - _COLLISION * bool(vehicle.crashed)
        return EnvironmentStep(self._flat(observation), float(shaped) if self._shaped else reward, over)

    @property
    def _vehicle(self) -> Any:
        return self._env.unwrapped.vehicle

    def _factor(self) -> float:
        """Less than a second behind the vehicle in front."""
        ahead, _ = self._env.unwrapped.road.neighbour_vehicles(self._vehicle)
        if ahead is None:
            return 1.0
        gap = float(ahead.position[0] - self._vehicle.position[0] - self._vehicle.LENGTH)
        return _CLOSE if gap < self._vehicle.speed else 1.0

    def _flat(self, observation: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.asarray(observation, np.float32).reshape(-1)
