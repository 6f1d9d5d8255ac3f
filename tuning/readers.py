"""Reading a study's folder, for the page and the command line; needs neither torch nor optuna."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.run import run_folder
from tuning import journal, owner, studyfile
from tuning.course import steered
from tuning.state import StudyState
from tuning.studyfile import StudyFile

STUDIES = "studies"
JOURNAL = "journal.jsonl"
STUDY_GIVEN = "study.yaml"
STUDY = "study.json"
RESULT = "result.json"
DATABASE = "optuna.db"
#: What a status says of an Optuna database that lacks trials: that in words.
LAG = "optuna_lag"


@dataclass(frozen=True, slots=True)
class StudyView:
    """A study as its folder shows it. ``state`` is what is true now: a dead owner's study is interrupted."""

    folder: Path
    name: str
    state: str
    journal: StudyState
    status: dict[str, Any]
    result: dict[str, Any] | None
    file: StudyFile | None

    @property
    def alive(self) -> bool:
        """Whether a process runs the study."""
        return self.state in owner.HELD


def load_study(folder: Path) -> StudyView:
    """Everything in a study's folder; what is missing or unreadable is None.

    Raises:
        InputError: there is no study in this folder.
    """
    state = journal.load(folder / JOURNAL)
    status = status_of(folder, state)
    result = run_folder.read_json(folder / RESULT)
    file = file_of(state.file or run_folder.read_json(folder / STUDY), state)
    return StudyView(folder, folder.name, state_of(status), state, status, result, file)


def status_of(folder: Path, state: StudyState) -> dict[str, Any]:
    """What the owner wrote last; empty where that cannot be read.

    Raises:
        InputError: there is no study in this folder.
    """
    status = run_folder.read_json(folder / run_folder.STATUS) or {}
    if state.file is None and not status:
        raise InputError("study", folder.name, "no such study; `workbench ls` lists what there is")
    return status


def every_study(home: Path) -> list[Path]:
    """Folders of all studies of a home, by name."""
    places = home / STUDIES
    return sorted(path for path in places.iterdir() if path.is_dir()) if places.is_dir() else []


def list_studies(home: Path) -> list[Path]:
    """As :func:`every_study`, without those that went on under another name: it has all their trials."""
    return [folder for folder in every_study(home) if latest(folder) == folder]


def latest(folder: Path) -> Path:
    """Where a study goes on by now, after its space was widened; the folder itself if it was not."""
    seen = {folder}
    while name := (run_folder.read_json(folder / run_folder.STATUS) or {}).get("continued_in"):
        following = folder.parent / str(name)
        if following in seen or not (following / JOURNAL).exists():
            break
        seen.add(folder := following)
    return folder


def history(home: Path, name: str) -> set[str]:
    """Every name that a study has had."""
    folder = latest(home / STUDIES / name)
    status = run_folder.read_json(folder / run_folder.STATUS) or {}
    return {name, folder.name, *map(str, status.get("continues") or ())}


def state_of(status: dict[str, Any]) -> str:
    """What is true now: a study whose owner died is interrupted."""
    state = str(status.get("state", "interrupted"))
    return "interrupted" if state in owner.HELD and not owner.is_alive(status) else state


def file_of(document: dict[str, Any] | None, state: StudyState) -> StudyFile | None:
    """As commands changed it since; None for a file that this version refuses: the journal stays readable."""
    try:
        return steered(studyfile.parse(document), state) if document else None
    except InputError:
        return None
