"""What a study can aim at: the name, unit and direction of each objective, and how its values are kept and shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Name = Literal[
    "tokens_per_second",
    "step_seconds",
    "mfu",
    "joules_per_token",
    "money_per_billion_tokens",
    "peak_memory_bytes",
    "time_to_loss",
]


@dataclass(frozen=True, slots=True)
class Objective:
    """Values are measured in the unit of the objective's name (the ``natural`` one), kept so that larger is better, and
    shown in ``unit``: ``kept / natural`` is kept where ``lower`` is better, and ``natural * factor`` is shown.

    ``by_time``: where ranks and tokens a step are the same for all trials, the time of a step decides it.
    ``single``: a run gives one value and no interval. ``most`` and ``better`` are words for the best and a better one.
    """

    title: str
    unit: str
    most: str
    better: str
    lower: bool = False
    kept: float = 1.0
    factor: float = 1.0
    by_time: bool = False
    single: bool = False


KNOWN: dict[Name, Objective] = {
    "tokens_per_second": Objective("Tokens per second", "tokens/s", "the fastest", "faster", by_time=True),
    "step_seconds": Objective(
        "Time of a step", "ms", "the fastest", "faster", lower=True, kept=3600.0, factor=1e3, by_time=True
    ),
    "mfu": Objective(
        "Model FLOP/s utilization", "% MFU", "the one with the highest MFU", "better", factor=100.0, by_time=True
    ),
    "joules_per_token": Objective(
        "Energy of a token", "J/token", "the most frugal", "more frugal", lower=True, kept=1e6, single=True
    ),
    "money_per_billion_tokens": Objective(
        "Price of a billion tokens", "/billion tokens", "the cheapest", "cheaper", lower=True, kept=1e9, by_time=True
    ),
    "peak_memory_bytes": Objective(
        "Peak memory of a rank", "GiB", "the smallest", "smaller",
        lower=True, kept=2.0**40, factor=2.0**-30, single=True,
    ),
    "time_to_loss": Objective(
        "Seconds of training to a held-out loss", "s", "the fastest", "faster", lower=True, kept=3600.0
    ),
}  # fmt: skip
