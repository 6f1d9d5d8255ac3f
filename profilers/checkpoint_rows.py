"""A save, and what a run continued from, as rows of a summary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One save: ``step`` is the next one to do after it, ``paused_seconds`` the time that training waited for it,
    ``problem`` why it failed.
    """

    step: int
    seconds: float
    paused_seconds: float
    asynchronous: bool
    bytes: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run and step that a run continued from, and the keys that decide a step and differ: [then, now]."""

    run: str
    step: int
    folder: str
    seconds: float
    changed: dict[str, list[Any]] = field(default_factory=dict)
