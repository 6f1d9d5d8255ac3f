"""What a study's values are of: tokens per second, or how fast a loss is reached. Larger is better for both.

A time to a loss is kept as how often an hour would reach it, so that all that ranks, compares and samples values need
not know; people are shown the seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Name = Literal["tokens_per_second", "time_to_loss"]
_HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Aim:
    """An objective: how its values are called and shown."""

    name: Name = "tokens_per_second"
    target_loss: float | None = None

    @property
    def in_time(self) -> bool:
        """Whether seconds are shown, and fewer are better."""
        return self.name == "time_to_loss"

    @property
    def unit(self) -> str:
        """Of the values that are shown."""
        return "s" if self.in_time else "tokens/s"

    @property
    def title(self) -> str:
        """What the values are, in words."""
        if self.in_time:
            return f"Seconds of training to a held-out loss of {self.target_loss:g}"
        return "Tokens per second of each trial"

    def shown(self, value: float | None) -> float | None:
        """A value in the unit that people see."""
        return _HOUR_SECONDS / value if self.in_time and value else value

    def bounds(self, low: float | None, high: float | None) -> tuple[float | None, float | None]:
        """The ends of an interval in that unit, the lower one first."""
        return (self.shown(high), self.shown(low)) if self.in_time else (low, high)


def aim_of(document: Mapping[str, Any]) -> Aim:
    """The aim of a study, from its document; of one that tells none, tokens per second."""
    name: Name = "time_to_loss" if document.get("objective") == "time_to_loss" else "tokens_per_second"
    return Aim(name, document.get("target_loss"))


def per_hour(seconds: float) -> float:
    """How a time is kept."""
    return _HOUR_SECONDS / seconds
