"""One line per run and per study: what lists show, and how it is read from a folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.run import run_folder
from tuning.storage import controllers
from tuning.storage.study_folder import RESULT, parts
from workbench import runs


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in one line."""

    id: str
    created_unix: float
    started_unix: float | None
    ended_unix: float | None
    state: str
    outcome: str | None
    reason: str
    layout: dict[str, int]
    world_size: int | None
    backend: str | None
    tokens_per_second: float | None
    step_seconds: float | None
    study: str | None
    trial: str | None
    purpose: str | None
    owner: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class StudyRow:
    """A study in one line. ``best_value`` is as its objective keeps values (``tuning.spec.objectives``)."""

    name: str
    updated_unix: float
    state: str
    trials_done: int | None
    trials_total: int | None
    objective: str | None
    best_value: float | None
    gain_verdict: str | None
    result_line: str | None
    owner: dict[str, Any] | None
    controllers: list[dict[str, Any]]


def run_row(folder: Path) -> RunRow:
    """The row of a run folder."""
    status = run_folder.read_json(folder / run_folder.STATUS) or {}
    summary = parts(folder / run_folder.SUMMARY, ("tokens_per_second", "step_seconds"))
    outcome = status.get("outcome") or {}
    labels = status.get("labels") or {}
    return RunRow(
        id=folder.name,
        created_unix=float(status.get("created_unix") or 0.0),
        started_unix=status.get("started_unix"),
        ended_unix=status.get("ended_unix"),
        state=str(status.get("state", "starting")),
        outcome=outcome.get("ending"),
        reason=str(outcome.get("reason", "")),
        layout=runs.layout_of(folder, status),
        world_size=status.get("world_size"),
        backend=status.get("backend"),
        tokens_per_second=summary.get("tokens_per_second"),
        step_seconds=(summary.get("step_seconds") or {}).get("median"),
        study=labels.get("study"),
        trial=labels.get("trial"),
        purpose=labels.get("purpose"),
        owner=status.get("owner"),
    )


def study_row(folder: Path) -> StudyRow:
    """The row of a study folder."""
    status = run_folder.read_json(folder / run_folder.STATUS) or {}
    result = parts(folder / RESULT, ("objective", "best", "gain", "result_line"))
    return StudyRow(
        name=folder.name,
        updated_unix=float(status.get("updated_unix") or folder.stat().st_mtime),
        state=str(status.get("state", "new")),
        trials_done=status.get("trials_done"),
        trials_total=status.get("trials_total"),
        objective=result.get("objective"),
        best_value=(result.get("best") or {}).get("value"),
        gain_verdict=(result.get("gain") or {}).get("verdict"),
        result_line=result.get("result_line"),
        owner=status.get("owner"),
        controllers=list(status.get("controllers") or ()),
    )


def run_now(row: RunRow) -> RunRow:
    """The row with the ending it has by now: a run whose owner is gone is lost."""
    if row.state == "ended" and row.outcome:
        return row
    status: dict[str, Any] = {"state": row.state, "created_unix": row.created_unix}
    status |= {"outcome": {"ending": row.outcome, "reason": row.reason}} if row.outcome else {}
    status |= {"owner": row.owner} if row.owner else {}
    state, outcome, reason = runs.ending(status)
    return replace(row, state=state, outcome=outcome, reason=reason)


def study_now(row: StudyRow) -> StudyRow:
    """The row with the state it has by now: a study whose owner is gone is interrupted."""
    names = ("state", "owner", "controllers", "updated_unix")
    if row.state not in controllers.HELD or controllers.is_alive(
        {name: getattr(row, name) for name in names}
    ):
        return row
    return replace(row, state="interrupted", controllers=[])
