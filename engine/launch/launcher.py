"""What every way of starting ranks offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from engine.config import RunConfig
from engine.devices import Devices
from engine.outcome import RunOutcome, StopAnswer


@dataclass(frozen=True, slots=True)
class Launch:
    """One run to start: its folder holds the exact configuration."""

    config: RunConfig
    folder: Path
    devices: Devices
    should_stop: Callable[[], StopAnswer]
    on_ranks: Callable[[list[int]], None] = field(default=lambda pids: None)


class Launcher(Protocol):
    """Starts the ranks of a run and sees it to its end."""

    def run(self, launch: Launch) -> RunOutcome:
        """Run to an ending; never raises for what a rank does."""

    def close(self) -> None:
        """Let go of all ranks."""
