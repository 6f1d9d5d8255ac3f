"""What a study runs its trials with: real ranks, a model of a cluster, or a recorded table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from engine.config.run_config import RunConfig
from engine.run.outcome import RunOutcome, StopAnswer
from profilers.analysis.statistics import median_interval
from profilers.model.run_summary import RunSummary

ShouldStop = Callable[[], StopAnswer]
OnStart = Callable[[Path], None] | None
Ran = tuple[RunOutcome, RunSummary]


class Execute(Protocol):
    """Runs one configuration; an ending is data. ``on_start`` is called with the run's folder."""

    def __call__(
        self, config: RunConfig, labels: dict[str, str], should_stop: ShouldStop, on_start: OnStart = None, /
    ) -> Ran: ...


class Played(ABC):
    """``Execute`` of what ran before, or never: trials are over at once, and leave no folder."""

    def __init__(self, name: str = "recorded") -> None:
        self._name, self._number = name, 0

    def __call__(
        self, config: RunConfig, labels: dict[str, str], should_stop: ShouldStop, on_start: OnStart = None, /
    ) -> Ran:
        self._number += 1
        run = f"{self._name}-{self._number}"
        if on_start:
            on_start(Path(run))
        return self.play(config, run)

    @abstractmethod
    def play(self, config: RunConfig, run: str) -> Ran:
        """How it ended, and what it measured."""


def played_summary(run: str, config: RunConfig, samples: list[float], **more: Any) -> RunSummary:
    """Of a run whose measured steps took ``samples`` seconds, if it measured some; ``more`` are keys of a summary."""
    tokens = config.batch.global_batch * config.data.sequence_length
    tree = {
        "id": run, "layout": {}, "world_size": 1, "backend": "recorded", "parameters": 1, "tokens_per_step": tokens,
        "measured_steps": len(samples), "step_samples": samples,
    }  # fmt: skip
    if samples:
        found = median_interval(samples)
        bounds = {"low": tokens / (found.high or found.value), "high": tokens / (found.low or found.value)}
        tree |= {"tokens_per_second": tokens / found.value, "tokens_per_second_interval": bounds}
    return RunSummary.from_dict(tree | more)
