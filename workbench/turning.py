"""Values that change while a run goes, as people ask for them: checked before anything is sent. No torch."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from engine import live, rules, rundir
from engine.config import RunConfig, load
from engine.errors import InputError
from workbench.inputs import assignments
from workbench.output import say


def checked(folder: Path, texts: list[str]) -> dict[str, Any]:
    """``["compression.ratio=0.01"]`` as values that this run can be changed to now.

    Raises:
        InputError: none is given, one cannot change while a run goes, is not legal for its layout, or the run is a
            trial of a study.
    """
    if not texts:
        raise InputError("set", None, "give at least one key, for example compression.ratio=0.01")
    values = assignments(texts)
    check(folder, values)
    return values


def check(folder: Path, values: dict[str, Any]) -> RunConfig:
    """The configuration that a run would have then.

    Raises:
        InputError: as :func:`checked`.
    """
    labels = (rundir.read_json(folder / rundir.STATUS) or {}).get("labels") or {}
    if labels.get("study"):
        key, value = next(iter(values.items()))
        remedy = f"{folder.name} is a trial of {labels['study']}, which would take the result for the old value's; "
        raise InputError(
            key, value, remedy + f"give workbench control {labels['study']} enqueue {key}={value}"
        )
    return live.changed(current(folder), values)


def current(folder: Path) -> RunConfig:
    """What a run's configuration is now. InputError if that cannot be read."""
    return load(folder / rundir.CONFIG)


def inherited(config: RunConfig, run: Path, given: Collection[str]) -> RunConfig:
    """A configuration that continues ``run``, with what was changed while that one went, and says so.

    A key keeps its own value if it is one of ``given``, or differs from what the run began with.

    Raises:
        InputError: such a value is not legal in this layout.
    """
    last = rundir.last_config(run)
    if last is None:
        return config
    first = load(run / rundir.STARTED)
    kept = {
        change.key: change.new
        for change in live.changes(first, last)
        if change.key not in given and live.value_of(config, change.key) == change.old
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
