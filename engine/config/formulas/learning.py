"""What a run's settings of learning come to: facts of each optimizer, and the rate that follows from them. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.config.run_config import RunConfig
from engine.config.sections import Train


@dataclass(frozen=True)
class OptimizerFacts:
    """Facts about an optimizer.

    ``paper`` is its arXiv number. ``settings`` of the section ``train`` act with it, beside those that act with all.
    ``averages``: of so many values it keeps track beside each parameter. ``whole_sums``: it sums over whole parameters
    once all gradients are there, so nothing goes out before. ``offered`` ones are in the space of a study that turns
    optimizers, others are listed as rare.
    """

    paper: str
    settings: tuple[str, ...]
    averages: Callable[[Train], int]
    whole_sums: bool = False
    offered: bool = True


_ADAM = ("beta1", "beta2", "epsilon")


def _two(train: Train) -> int:
    return 2


def _sum_of_momentum(train: Train) -> int:
    return int(train.momentum > 0)


#: By the names that configurations use. Muon is AdamW for all but the matrices of blocks.
OPTIMIZERS: dict[str, OptimizerFacts] = {
    "adamw": OptimizerFacts("1711.05101", _ADAM, _two),
    "sgd": OptimizerFacts("", ("momentum",), _sum_of_momentum),
    "lamb": OptimizerFacts("1904.00962", _ADAM, _two, whole_sums=True),
    "lars": OptimizerFacts("1708.03888", ("momentum", "trust"), _sum_of_momentum, whole_sums=True),
    "muon": OptimizerFacts("2502.16982", (*_ADAM, "momentum"), _two, offered=False),
}
#: Those that act with some optimizers only.
SOMETIMES = tuple(dict.fromkeys(name for one in OPTIMIZERS.values() for name in one.settings))


def acts_with(train: Train) -> set[str]:
    """Of ``SOMETIMES``, those that act with a run's optimizer."""
    return set(OPTIMIZERS[train.optimizer].settings)


#: From how many times larger the batch is to how many times larger the learning rate: arXiv 1706.02677 goes with the
#: batch, arXiv 1404.5997 (section 3.2) with its root.
SCALINGS: dict[str, Callable[[float], float]] = {
    "none": lambda larger: 1.0,
    "linear": lambda larger: larger,
    "square_root": math.sqrt,
}


class RatePlan(NamedTuple):
    """How a run's learning rate goes: it rises in equal parts over ``rise`` steps to ``peak``, and falls from there to
    ``floor`` of it over the rest as ``fall`` says (constant, linear, cosine).
    """

    peak: float
    rise: int
    fall: str
    floor: float

    @property
    def settings(self) -> dict[str, Any]:
        """The same without scaling and cycle, under dotted keys."""
        return {
            "train.learning_rate": self.peak,
            "train.learning_rate_warmup": self.rise,
            "train.learning_rate_schedule": self.fall,
            "train.learning_rate_floor": self.floor,
        }


def rate_plan(config: RunConfig) -> RatePlan:
    """From all settings of the learning rate. One cycle (arXiv 1708.07120, 2212.14034) rises over the first half of the
    steps and falls in a line over the other.
    """
    train, larger = config.train, 1.0
    if train.learning_rate_batch is not None:
        larger = config.batch.global_batch / train.learning_rate_batch
    peak = train.learning_rate * SCALINGS[train.learning_rate_scaling](larger)
    if train.learning_rate_schedule == "one_cycle":
        return RatePlan(peak, train.steps // 2, "linear", train.learning_rate_floor)
    return RatePlan(peak, train.learning_rate_warmup, train.learning_rate_schedule, train.learning_rate_floor)
