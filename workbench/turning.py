"""Values that change while a run goes, as people ask for them: checked before anything is sent. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.config.run_config import RunConfig, load
from engine.run import run_folder
from engine.validation import live_changes
from workbench.inputs import assignments


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
    labels = (run_folder.read_json(folder / run_folder.STATUS) or {}).get("labels") or {}
    if labels.get("study"):
        key, value = next(iter(values.items()))
        remedy = f"{folder.name} is a trial of {labels['study']}, which would take the result for the old value's; "
        raise InputError(
            key, value, remedy + f"give workbench control {labels['study']} enqueue {key}={value}"
        )
    return live_changes.changed(current(folder), values)


def current(folder: Path) -> RunConfig:
    """What a run's configuration is now. InputError if that cannot be read."""
    return load(folder / run_folder.CONFIG)
