"""Both rewards and the ends of an episode, on a made-up road in highway-env's place: what happens there is planned."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from engine.model.workloads.published.driving import Driver, EnvironmentStep, Road, workload

START, LENGTH = 30.0, 5.0


class Second(NamedTuple):
    """What happens in one: metres driven, the package's own reward, and what is the case at its end."""

    metres: float = 50.0
    shaped: float = 0.75
    crashed: bool = False
    on_road: bool = True
    #: Metres from the vehicle's front to the one ahead.
    gap: float | None = None
    terminated: bool = False
    truncated: bool = False


class MadeUp:
    """An environment in which the same seconds pass in every episode, whatever is done; it drives 25 m/s."""

    def __init__(self, seconds: list[Second]) -> None:
        self.seconds, self.numbers, self.actions = seconds, list[int](), list[int]()
        self.config = dict[str, Any]()
        self._left: Iterator[Second] = iter(())
        self._gap: float | None = None
        self.unwrapped = SimpleNamespace(road=SimpleNamespace(neighbour_vehicles=self._neighbours))

    def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        self.numbers.append(seed)
        self._left, self._gap = iter(self.seconds), None
        at = {"position": np.array([START, 4.0]), "crashed": False, "on_road": True}
        self.unwrapped.vehicle = SimpleNamespace(**at, speed=25.0, LENGTH=LENGTH)
        return np.zeros((5, 5)), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        now, vehicle = next(self._left), self.unwrapped.vehicle
        vehicle.position = vehicle.position + np.array([now.metres, 0.0])
        vehicle.crashed, vehicle.on_road, self._gap = now.crashed, now.on_road, now.gap
        return np.ones((5, 5)), now.shaped, now.terminated, now.truncated, {}

    def _neighbours(self, vehicle: Any) -> tuple[Any, None]:
        if self._gap is None:
            return None, None
        ahead = vehicle.position[0] + vehicle.LENGTH + self._gap
        return SimpleNamespace(position=np.array([ahead, 4.0])), None


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    """What ``gymnasium.make`` gives."""
    found, gymnasium = MadeUp([]), ModuleType("gymnasium")

    def make(name: str, config: dict[str, Any], disable_env_checker: bool) -> MadeUp:
        assert name == "highway-fast-v0" and disable_env_checker
        found.config = config
        return found

    gymnasium.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gymnasium", gymnasium)
    monkeypatch.setitem(sys.modules, "highway_env", ModuleType("highway_env"))
    return found


def drive(made_up: MadeUp, reward: str, *seconds: Second) -> list[EnvironmentStep]:
    """All of an episode's seconds, also those behind its end."""
    made_up.seconds, road = list(seconds), Road(reward, 7)
    road.reset(3)
    return [road.step(2) for _ in seconds]


def test_a_route_is_worth_what_is_completed_of_it(made_up: MadeUp) -> None:
    """500 metres are worth 10; the episode is over where they are driven, and there is no more to gain."""
    moved = drive(made_up, "completion", Second(50), Second(0), Second(100), Second(400))
    assert [one.reward for one in moved] == pytest.approx([1, 0, 2, 7])
    assert [one.over for one in moved] == [False, False, False, True]
    assert made_up.config["vehicles_count"] == 7 and made_up.numbers == [3] and made_up.actions == [2] * 4
    assert moved[0].seen.shape == (25,) and moved[0].seen.dtype == np.float32


def test_who_drives_too_near_gains_half(made_up: MadeUp) -> None:
    """Less than a second behind the next vehicle: below 25 metres at 25 m/s."""
    moved = drive(made_up, "completion", Second(gap=24), Second(gap=26), Second(gap=0.5), Second())
    assert [one.reward for one in moved] == pytest.approx([0.5, 1, 0.5, 1])
    assert not any(one.over for one in moved)


@pytest.mark.parametrize(
    ("last", "reward"),
    [
        (Second(crashed=True), 0.0),
        (Second(crashed=True, gap=1), -0.5),
        (Second(on_road=False), 1.0),
        (Second(truncated=True), 1.0),
        (Second(terminated=True), 1.0),
    ],
    ids=["a collision", "a collision, too near", "off the road", "out of time", "the package's own end"],
)
@pytest.mark.parametrize("kind", ["completion", "shaped"])
def test_hard_infractions_end_an_episode_by_either_reward(
    made_up: MadeUp, kind: str, last: Second, reward: float
) -> None:
    """A collision costs 1 beside; the shaped reward is the package's own number, whatever happens."""
    before, end = drive(made_up, kind, Second(), last)
    assert (before.over, end.over) == (False, True)
    wanted = [1.0, reward] if kind == "completion" else [0.75, 0.75]
    assert [before.reward, end.reward] == pytest.approx(wanted)


def test_a_new_episode_begins_a_new_route(made_up: MadeUp) -> None:
    made_up.seconds, road = [Second(500), Second(50)], Road("completion", 0)
    for number in (4, 9):
        road.reset(number)
        assert road.completed == 0 and road.step(0).over
        assert road.completed == 1
    assert made_up.numbers == [4, 9]


def test_a_policy_is_judged_by_the_route_completed_whatever_it_learned_from(made_up: MadeUp) -> None:
    """Each held-out episode is driven once for the same weights."""
    made_up.seconds = [Second(100), Second(50, gap=1, crashed=True)]
    found = workload("shaped")
    driver = found.blocks[0]()
    assert isinstance(driver, Driver)
    numbers, targets = found.batches.validation(0, 3)
    for _ in range(2):
        completed = driver(numbers)
        assert completed.tolist() == pytest.approx([0.3] * 3)
        assert float(found.loss(completed, targets)) == pytest.approx(0.7)
    assert sorted(made_up.numbers) == numbers.tolist()
    with torch.no_grad():
        driver.value[0].bias.add_(1.0)
    driver(numbers[:1])
    assert len(made_up.numbers) == 4
