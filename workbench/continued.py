"""A run that continues another one, with what was changed while that one went. No torch."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.config.run_config import RunConfig, load
from engine.run import run_folder
from engine.validation import live_changes, rules
from workbench.output import say


def inherited(config: RunConfig, run: Path, given: Collection[str]) -> RunConfig:
    """A configuration that continues ``run``, with what was changed while that one went, and says so.

    A key keeps its own value if it is one of ``given``, or differs from what the run began with.

    Raises:
        InputError: such a value is not legal in this layout.
    """
    last = run_folder.last_config(run)
    if last is None:
        return config
    first = load(run / run_folder.STARTED)
    kept = {
        change.key: change.new
        for change in live_changes.changes(first, last)
        if change.key not in given and live_changes.value_of(config, change.key) == change.old
    }
    after = config.with_values(kept)
    try:
        rules.check(after)
    except InputError as problem:
        origin = f"{run.name} was changed to {_point(kept)}; set other values to start with"
        raise InputError(problem.field, problem.value, f"{problem.remedy} ({origin})") from None
    if kept:
        say(f"note: {_point(kept)}, as {run.name} was changed to while it went")
    return after


def _point(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
