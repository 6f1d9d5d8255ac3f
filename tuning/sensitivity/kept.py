"""What was worked out from a study's trials, kept in its folder under how many trials there were."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from engine.run import run_folder
from tuning.sensitivity.extra import Method

FOLDER = "sensitivity"
#: Of what is written; files of another version are not read.
VERSION = 1
_NAME = re.compile(r"(fanova|shap)-(\d+)\.json")


def path(study: Path, method: Method, trials: int) -> Path:
    """Where the outcome of a method over so many ended trials lies."""
    return study / FOLDER / f"{method}-{trials}.json"


def write(study: Path, method: Method, trials: int, document: dict[str, Any]) -> None:
    """Keep an outcome, whole or not at all."""
    (study / FOLDER).mkdir(exist_ok=True)
    known = {"version": VERSION, "method": method, "of_trials": trials}
    run_folder.write_json(path(study, method, trials), known | document)


def read(study: Path, method: Method, trials: int) -> dict[str, Any] | None:
    """The outcome over exactly so many trials, or None."""
    return _checked(path(study, method, trials))


def newest(study: Path, method: Method, trials: int) -> dict[str, Any] | None:
    """The outcome over the most trials, of at most so many; a study only grows."""
    folder = study / FOLDER
    names = (_NAME.fullmatch(found.name) for found in folder.iterdir()) if folder.is_dir() else ()
    counts = (int(name[2]) for name in names if name and name[1] == method)
    for count in sorted((count for count in counts if count <= trials), reverse=True):
        found = read(study, method, count)
        if found is not None:
            return found
    return None


def _checked(file: Path) -> dict[str, Any] | None:
    found = run_folder.read_json(file)
    return found if found and found.get("version") == VERSION else None
