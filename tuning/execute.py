"""What a study runs its trials with: real ranks, a model of a cluster, or a recorded table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from engine.config import RunConfig
from engine.outcome import RunOutcome, StopAnswer
from profilers.summary import RunSummary


class Execute(Protocol):
    """Runs one configuration; an ending is data. ``on_start`` is called with the run's folder."""

    def __call__(
        self,
        config: RunConfig,
        labels: dict[str, str],
        should_stop: Callable[[], StopAnswer],
        on_start: Callable[[Path], None] | None = None,
        /,
    ) -> tuple[RunOutcome, RunSummary]: ...
