"""What a stage does, one action after the other; a schedule is a list of these."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple


class Work(StrEnum):
    """Kinds of work on one micro-batch."""

    FORWARD = "F"
    BACKWARD = "B"


class Action(NamedTuple):
    """One piece of work; receives come before it and sends after it by themselves."""

    work: Work
    micro_batch: int

    def __str__(self) -> str:
        """As written in figures: ``F0``."""
        return f"{self.work}{self.micro_batch}"


Schedule = Callable[[int, int, int], list[Action]]


def forward(micro_batch: int) -> Action:
    """A forward action."""
    return Action(Work.FORWARD, micro_batch)


def backward(micro_batch: int) -> Action:
    """A backward action."""
    return Action(Work.BACKWARD, micro_batch)
