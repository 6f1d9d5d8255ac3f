"""Saddle points for MASHA: what a player makes small and an opponent large, of quadratic functions or of a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.model.workload import Batches, Mean, Workload
from engine.model.workloads.published.extragradient import SADDLE_METHODS, Rule, own_step
from engine.model.workloads.published.options import require_minimum
from engine.model.workloads.vision import Classes, DrawnImages, Images, accuracy


def workload(
    problem: str = "quadratic",
    method: str = "masha1",
    *,
    share: float = 0.1,
    refresh: float | None = None,
    unknowns: int = 50,
    functions: int = 8,
    penalty: float = 0.5,
    seed: int = 0,
) -> Workload:
    """``quadratic``: so many unknowns of each player, in the mean of so many functions; ``adversarial``: a network
    for so many drawn images of so many pixels a side, and a disturbance that is added to all of them. A step sees all:
    ``batch.global_batch`` is ``functions``.

    ``share`` of an operator's elements is sent, and with probability ``refresh`` (``share``, if it is not given) all of
    it once more. ``train.learning_rate`` is the length of a step.

    Raises:
        ValueError: a name is unknown, or a number out of its range.
    """
    refresh = share if refresh is None else refresh
    if problem not in GAMES or method not in SADDLE_METHODS:
        names = f"problems are {', '.join(GAMES)}, methods {', '.join(SADDLE_METHODS)}"
        raise ValueError(f"{problem=}, {method=}: {names}")
    if not (0 < share <= 1 and 0 < refresh <= 1):
        raise ValueError(f"{share=}, {refresh=}: both have to be above 0 and at most 1")
    if penalty < 0:
        raise ValueError(f"{penalty=} has to be at least 0: there is no saddle point below")
    require_minimum(1, unknowns=unknowns, functions=functions)
    require_minimum(0, seed=seed)
    game = GAMES[problem](unknowns, functions, penalty, seed)
    rule = Rule(method, share, refresh, seed)
    return Workload(
        name=f"saddle {problem}",
        blocks=[game.build],
        batches=game.batches,
        loss=game.loss,
        metric=game.metric,
        metric_name=game.metric_name,
        step=lambda setting: own_step(setting, rule, game.value),
        step_samples=functions,
    )


@dataclass(frozen=True)
class Game:
    """``value`` is what parameters called ``opponent`` make large and all others small, ``loss`` what is told of it."""

    build: Callable[[], nn.Module]
    batches: Batches
    value: Mean
    loss: Mean
    metric: Mean | None = None
    metric_name: str = "metric"


def quadratic(unknowns: int, functions: int, penalty: float, seed: int) -> Game:
    """Told is the distance to the solution, of which the start is 1 away."""
    return Game(
        lambda: Players(unknowns, penalty),
        Quadratics(unknowns, functions, penalty, seed),
        value=lambda output, _: output[:, 0].mean(),
        loss=lambda output, targets: (output[0, 1:] - targets[0]).norm() / targets[0].norm(),
    )


def adversarial(unknowns: int, functions: int, penalty: float, seed: int) -> Game:
    """Told are the loss and the accuracy with the disturbance."""

    def loss(output: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(output[:, 1:], classes)

    return Game(
        lambda: DisturbedNetwork(3 * unknowns**2, penalty),
        FixedImages(DrawnImages(unknowns, 10, seed), functions),
        value=lambda output, classes: loss(output, classes) - output[:, 0].mean(),
        loss=loss,
        metric=lambda output, classes: accuracy(output[:, 1:], classes),
        metric_name="robust accuracy",
    )


GAMES: dict[str, Callable[[int, int, float, int], Game]] = {
    "quadratic": quadratic,
    "adversarial": adversarial,
}


class Players(nn.Module):
    """x'Ay + b'x + c'y + penalty/2 (x'x - y'y) of samples [n, unknowns, unknowns + 2], before x and y: [n, 1 + 2 d]."""

    def __init__(self, unknowns: int, penalty: float) -> None:
        super().__init__()
        self.penalty = penalty
        self.player, self.opponent = (
            nn.Parameter(torch.zeros(unknowns, dtype=torch.float64)) for _ in range(2)
        )

    def forward(self, samples: Tensor) -> Tensor:
        matrices, b, c = samples[..., :-2], samples[..., -2], samples[..., -1]
        x, y = self.player, self.opponent
        value = (matrices @ y) @ x + b @ x + c @ y + self.penalty / 2 * (x @ x - y @ y)
        return torch.cat([value[:, None], torch.cat([x, y]).expand(len(samples), -1)], dim=1)


@dataclass(frozen=True)
class Quadratics:
    """Sample n is the function n modulo their number; the target is the saddle point of their mean."""

    unknowns: int
    functions: int
    penalty: float
    seed: int

    def training(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        drawn, solution = _draw_functions(self)
        numbers = torch.arange(first, first + count) % self.functions
        return drawn[numbers], solution.expand(count, -1)

    def validation(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """The same: there is nothing to generalise to."""
        return self.training(first, count)


@lru_cache(maxsize=1)
def _draw_functions(quadratics: Quadratics) -> tuple[Tensor, Tensor]:
    """All functions and their saddle point, found once: each step reads them, and solving took longer than the step."""
    drawn = np.random.default_rng(quadratics.seed).standard_normal(
        (quadratics.functions, quadratics.unknowns, quadratics.unknowns + 2)
    )
    drawn[..., :-2] /= np.sqrt(quadratics.unknowns)
    mean, eye = drawn.mean(axis=0), quadratics.penalty * np.eye(quadratics.unknowns)
    operator = np.block([[eye, mean[:, :-2]], [-mean[:, :-2].T, eye]])
    solution = np.linalg.solve(operator, np.concatenate([-mean[:, -2], mean[:, -1]]))
    return torch.from_numpy(drawn), torch.from_numpy(solution)


class DisturbedNetwork(nn.Module):
    """Classes of images to all of which the opponent adds one vector, at a price: [n, d] -> [n, 1 + classes]."""

    def __init__(self, features: int, penalty: float, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.penalty = penalty
        self.up = nn.Linear(features, width, dtype=torch.float64)
        self.down = nn.Linear(width, classes, dtype=torch.float64)
        self.opponent = nn.Parameter(torch.zeros(features, dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        logits = self.down(torch.tanh(self.up(images + self.opponent)))
        price = self.penalty / 2 * (self.opponent @ self.opponent)
        return torch.cat([price.expand(len(images), 1), logits], dim=1)


@dataclass(frozen=True)
class FixedImages:
    """So many drawn images are trained on, again and again."""

    drawn: DrawnImages
    functions: int

    def training(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        return self._flat(*self.drawn.training(first % self.functions, count))

    def validation(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        return self._flat(*self.drawn.validation(first, count))

    def _flat(self, images: Images, classes: Classes) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(images).double().flatten(1), torch.from_numpy(classes)
