"""One study folder, read: the result as its journal has it by now, and the run that it recommends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from tuning.storage import study_folder
from tuning.storage.study_folder import StudyReader, StudyView
from workbench import why
from workbench.resolve import Target


def document(folder: Path) -> dict[str, Any]:
    """The JSON of a study, as ``tune`` and ``show`` print it.

    Raises:
        InputError: there is no study in this folder.
    """
    return of_view(StudyReader(folder).view())


def of_view(view: StudyView) -> dict[str, Any]:
    """As :func:`document`, of a study that was read already. The journal is the truth; result.json may be older."""
    from tuning.report.result import result

    if view.file is not None:
        importance = (view.result or {}).get("importance")
        found = result(view.journal, view.file, view.state) | {"importance": importance}
    else:
        found = _EMPTY | {"study": view.name} | (view.result or {}) | {"state": view.state}
    members = list(view.status.get("controllers") or ()) if view.alive else []
    found[study_folder.LAG] = str(view.status.get(study_folder.LAG) or "")
    return found | {"controllers": members, "why": why.of_study(found, view.folder.parent.parent)}


_EMPTY: dict[str, Any] = {"objective": None, "best": None, "baseline": None, "gain": None, "trials": []}


def best_run(home: Path, target: Target) -> Target:
    """A study's best run; a run is itself.

    Raises:
        InputError: the study has measured nothing, or the run's folder is gone.
    """
    if target.kind == "run":
        return target
    return _run_of(home, target, document(target.folder).get("best") or {}, "best")


def recommended_run(home: Path, target: Target) -> tuple[Target, str]:
    """The run that a study recommends, which on a tie need not be the fastest, and that in words; a run is itself.

    Raises:
        InputError: the study has measured nothing, or the run's folder is gone.
    """
    if target.kind == "run":
        return target, ""
    found = document(target.folder)
    best = found.get("best") or {}
    entry = found.get("recommended") or best
    run = _run_of(home, target, entry, "recommended")
    if entry.get("run") == best.get("run"):
        return run, f"its best run {run.id}"
    return (
        run,
        f"the run {run.id} that it recommends ({entry.get('why')}), not its fastest, {best.get('run')}",
    )


def _run_of(home: Path, target: Target, entry: dict[str, Any], which: str) -> Target:
    run = entry.get("run")
    if not run:
        raise InputError("id", target.id, "this study has no measured trial yet; wait for one, or give a run")
    if not (home / run).is_dir():
        raise InputError("id", target.id, f"the folder of its {which} run {run} is gone from {home}")
    return Target("run", run, home / run)
