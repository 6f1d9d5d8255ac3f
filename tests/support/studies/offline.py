"""Trials that run nothing: executors of what was recorded, or made up, and summaries of steps of given seconds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from engine.config.run_config import RunConfig
from profilers.analysis.statistics import mean_interval
from profilers.model.run_summary import RunSummary
from tuning.execution.executor import OnStart, Ran, ShouldStop


class OfflineExecutor(ABC):
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


def build_summary(run: str, config: RunConfig, samples: list[float], **more: Any) -> RunSummary:
    """Of a run whose measured steps took ``samples`` seconds, if it measured some; ``more`` are keys of a summary."""
    tokens = config.batch.global_batch * config.data.sequence_length
    tree = {
        "id": run, "layout": {}, "world_size": 1, "backend": "recorded", "parameters": 1, "tokens_per_step": tokens,
        "measured_steps": len(samples), "step_samples": samples,
    }  # fmt: skip
    if samples:
        interval = mean_interval(samples)
        bounds = {
            "low": tokens / (interval.high or interval.value),
            "high": tokens / (interval.low or interval.value),
        }
        tree |= {"tokens_per_second": tokens / interval.value, "tokens_per_second_interval": bounds}
    return RunSummary.from_dict(tree | more)
