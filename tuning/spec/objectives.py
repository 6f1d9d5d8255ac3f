"""What a study can aim at: the name, unit and direction of each objective, and how values are kept and shown.

Everything that ranks, compares and samples values takes larger ones as better: what should be small is kept as its
inverse (a time as how often an hour would hold it), and people are shown the usual unit. An ``Aim`` is an objective
of one study, with the loss to reach or the currency where it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from engine.config.errors import InputError
from engine.config.sections import Train

Name = Literal[
    "tokens_per_second",
    "step_seconds",
    "mfu",
    "joules_per_token",
    "money_per_billion_tokens",
    "peak_memory_bytes",
    "time_to_loss",
    "loss_at_seconds",
]


@dataclass(frozen=True, slots=True)
class Objective:
    """Values are measured in the unit of the objective's name (the ``natural`` one), kept so that larger is better, and
    shown in ``unit``: ``numerator / natural`` is kept where ``lower`` is better, and ``natural * factor`` is shown.

    ``by_time``: where ranks and tokens a step are the same for all trials, the time of a step decides it.
    ``single``: a run gives one value and no interval. ``learns``: it tells what was learned, so trials may differ in
    what changes that. ``most`` and ``better`` are words for the best and a better one.
    """

    title: str
    unit: str
    most: str
    better: str
    lower: bool = False
    numerator: float = 1.0
    factor: float = 1.0
    by_time: bool = False
    single: bool = False
    learns: bool = False


KNOWN: dict[Name, Objective] = {
    "tokens_per_second": Objective("Tokens per second", "tokens/s", "the fastest", "faster", by_time=True),
    "step_seconds": Objective(
        "Time of a step", "ms", "the fastest", "faster", lower=True, numerator=3600.0, factor=1e3, by_time=True
    ),
    "mfu": Objective(
        "Model FLOP/s utilization", "% MFU", "the one with the highest MFU", "better", factor=100.0, by_time=True
    ),
    "joules_per_token": Objective(
        "Energy of a token", "J/token", "the most frugal", "more frugal", lower=True, numerator=1e6, single=True
    ),
    "money_per_billion_tokens": Objective(
        "Price of a billion tokens", "/billion tokens", "the cheapest", "cheaper",
        lower=True, numerator=1e9, by_time=True,
    ),
    "peak_memory_bytes": Objective(
        "Peak memory of a rank", "GiB", "the smallest", "smaller",
        lower=True, numerator=2.0**40, factor=2.0**-30, single=True,
    ),
    "time_to_loss": Objective(
        "Seconds of training to a held-out loss", "s", "the fastest", "faster",
        lower=True, numerator=3600.0, learns=True,
    ),
    "loss_at_seconds": Objective(
        "Held-out loss after a time of training", "loss", "the one that learned most", "better",
        lower=True, single=True, learns=True,
    ),
}  # fmt: skip


__all__ = ["Aim", "MeasuredValue", "Name", "check_loss_after", "find_aim", "likelihood", "text"]


class MeasuredValue(msgspec.Struct, frozen=True, gc=False):
    """What a run measured of an objective, in the unit of its name, with its 95 % interval, or the ``reason`` why that
    is not known.
    """

    value: int | float | None = None
    low: int | float | None = None
    high: int | float | None = None
    reason: str = ""


#: By objective; the part of memory that stayed free is among them.
Measures = dict[str, MeasuredValue]


@dataclass(frozen=True, slots=True)
class Aim:
    """An objective: how its values are called and shown."""

    name: Name = "tokens_per_second"
    target_loss: float | None = None
    currency: str = ""
    per_gpu_hour: float | None = None

    @property
    def objective(self) -> Objective:
        """Its direction and units."""
        return KNOWN[self.name]

    @property
    def in_time(self) -> bool:
        """Whether it is the time until a loss is reached."""
        return self.name == "time_to_loss"

    @property
    def unit(self) -> str:
        """Of the values that are shown."""
        if self.name == "money_per_billion_tokens":
            return f"{self.currency or 'money'}{self.objective.unit}"
        return self.objective.unit

    @property
    def title(self) -> str:
        """What the values are, in words."""
        if self.in_time:
            return f"{self.objective.title} of {self.target_loss or 0.0:g}"
        return f"{self.objective.title} of each trial"

    @property
    def tick(self) -> str:
        """How figures write a value."""
        return ",.0f" if self.name == "tokens_per_second" else ",.3~r"

    def to_stored(self, natural: float) -> float:
        """A value in the unit of the objective's name, as it is kept."""
        return self.objective.numerator / natural if self.objective.lower else natural

    def natural(self, value: float | None) -> float | None:
        """The reverse of :meth:`to_stored`."""
        return self.objective.numerator / value if self.objective.lower and value else value

    def to_unit(self, natural: float | None) -> float | None:
        """A value in the unit of the objective's name, in the unit that people see."""
        return None if natural is None else natural * self.objective.factor

    def to_display(self, value: float | None) -> float | None:
        """A kept value in the unit that people see."""
        return self.to_unit(self.natural(value))

    def bounds(self, low: float | None, high: float | None) -> tuple[float | None, float | None]:
        """The ends of an interval in that unit, the lower one first."""
        ends = self.to_display(low), self.to_display(high)
        return ends[::-1] if self.objective.lower else ends

    def words(self, value: float | None) -> str:
        """A kept value as people read it, with its unit."""
        return f"{text(self.to_display(value))} {self.unit}"


def find_aim(
    name: Any, target_loss: float | None = None, currency: str = "", per_gpu_hour: float | None = None
) -> Aim:
    """The aim of a study; of one that tells no name, or one that is not known, tokens per second."""
    known_name: Name = name if name in KNOWN else "tokens_per_second"
    return Aim(known_name, target_loss, currency, per_gpu_hour)


def check_loss_after(aims: Sequence[Aim], train: Train, is_own_engine: bool) -> None:
    """A loss after a time needs the time, text to take the loss on, and runs of this project's engine that begin and
    end (``is_own_engine``).

    Raises:
        InputError: one of them is missing.
    """
    if not any(aim.name == "loss_at_seconds" for aim in aims):
        return
    if train.seconds is None:
        remedy = "needs the seconds of each trial; write objective: {loss_at_seconds: 60}"
        raise InputError("objective", "loss_at_seconds", remedy)
    if not train.validation_batches:
        remedy = "there is no held-out text to take a loss on; give 1"
        raise InputError("base.train.validation_batches", 0, remedy)
    if not is_own_engine:
        remedy = "is of runs of this project's engine from beginning to end; ask for tokens_per_second here"
        raise InputError("objective", "loss_at_seconds", remedy)


def likelihood(probability: float) -> str:
    """A probability that is an estimate, in percent; never 0 or 100, which would be certain."""
    percent = round(100 * probability)
    return "over 99 %" if percent >= 100 else "under 1 %" if percent <= 0 else f"{percent} %"


def text(value: float | None) -> str:
    """A number with three digits, or all those before the point."""
    if value is None:
        return "—"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
