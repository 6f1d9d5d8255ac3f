"""Real runs on warm gloo ranks, for tests that need one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.config.run_config import RunConfig, parse
from engine.run.outcome import RunOutcome
from engine.session import Session
from profilers.model.run_summary import RunSummary

SMALL: dict[str, Any] = {
    "batch": {"global_batch": 8, "micro_batch": 1},
    "data": {"sequence_length": 64},
    "train": {"steps": 3, "warmup": 1, "step_timeout_seconds": 60.0},
    "device": "cpu",
}


def small(**values: Any) -> RunConfig:
    """A configuration of three small steps; ``parallel__tp=2`` sets ``parallel.tp``."""
    return parse(SMALL).with_values({key.replace("__", "."): value for key, value in values.items()})


def execute(
    session: Session,
    config: RunConfig,
    should_stop: Callable[[], bool] = lambda: False,
    on_start: Callable[[Path], None] | None = None,
) -> tuple[RunOutcome, RunSummary]:
    """One run with no labels."""
    return session.execute(config, {}, should_stop, on_start)
