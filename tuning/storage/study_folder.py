"""Reads a study's folder, once or again and again, for the page and the command line; without torch and optuna."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from engine.config.errors import InputError
from engine.run import run_folder
from engine.run.run_folder import JsonDocument
from tuning.spec import study_file
from tuning.spec.study_file import StudyFile
from tuning.storage import controllers, journal
from tuning.storage.controllers import StudyStatus
from tuning.storage.effective_config import steer_file
from tuning.storage.journal import JournalReader
from tuning.storage.state import StudyState

Part = TypeVar("Part", bound=msgspec.Struct)
STUDIES = "studies"
JOURNAL = "journal.jsonl"
STUDY_GIVEN = "study.yaml"
STUDY = "study.json"
RESULT = "result.json"
DATABASE = "optuna.db"
#: What a result says of an Optuna database that lacks trials: that in words.
LAG = "optuna_lag"


@dataclass(frozen=True, slots=True)
class StudyView:
    """A study as its folder shows it. ``state`` is what is true now: a dead owner's study is interrupted."""

    folder: Path
    name: str
    state: str
    journal: StudyState
    status: StudyStatus
    #: ``result.json`` as it stands; a :class:`StudyReader` has only some of its keys.
    result: JsonDocument | None
    file: StudyFile | None

    @property
    def alive(self) -> bool:
        """Whether a process runs the study."""
        return self.state in controllers.HELD


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


def status_of(folder: Path, state: StudyState) -> StudyStatus:
    """What the owner wrote last.

    Raises:
        InputError: there is no study in this folder.
    """
    status = StudyStatus.from_folder(folder)
    if state.file is None and status == StudyStatus():
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
    visited = {folder}
    while name := StudyStatus.from_folder(folder).continued_in:
        following = folder.parent / name
        if following in visited or not (following / JOURNAL).exists():
            break
        visited.add(folder := following)
    return folder


def history(home: Path, name: str) -> set[str]:
    """Every name that a study has had."""
    folder = latest(home / STUDIES / name)
    return {name, folder.name, *StudyStatus.from_folder(folder).continues}


def state_of(status: StudyStatus) -> str:
    """What is true now: a study whose owner died is interrupted."""
    died = status.state in controllers.HELD and not status.alive
    return "interrupted" if died else status.state or "interrupted"


def file_of(document: JsonDocument | None, state: StudyState) -> StudyFile | None:
    """As commands changed it since; None for a file that this version refuses: the journal stays readable."""
    try:
        return steer_file(study_file.parse(document), state) if document else None
    except InputError:
        return None


class BesideJournal(msgspec.Struct, frozen=True):
    """What a study's result says that its journal does not, as ``StudyResult`` has it."""

    importance: Any = UNSET
    prior: Any = UNSET


def read_part(path: Path, kind: type[Part]) -> Part:
    """Those keys of a document that are fields of a struct; with thousands of trials that is much faster than all of
    it. Without the file, and where a key has a value of another type, what the struct says of nothing.
    """
    with suppress(OSError, ValueError):
        return msgspec.json.decode(path.read_bytes(), type=kind)
    with suppress(msgspec.ValidationError):  # msgspec's own reader knows no NaN
        return msgspec.convert(run_folder.read_json(path) or {}, kind)
    return kind()


class StudyReader:
    """Everything in a study's folder, as :func:`tuning.storage.study_folder.load_study` reads it, except that
    ``result`` holds only what the journal does not say, unless this version refuses the study's file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._journal = JournalReader(folder / JOURNAL)
        self._asked: tuple[Any, ...] = ()
        self._file: StudyFile | None = None
        self._signature: tuple[object, ...] = ()
        self._result: JsonDocument | None = None

    def view(self) -> StudyView:
        """The study now.

        Raises:
            InputError: there is no study in this folder.
        """
        state = self._journal.look()
        status = status_of(self._folder, state)
        file = self._file_of(state)
        result = self._result_of(whole=file is None)
        name = self._folder.name
        return StudyView(self._folder, name, state_of(status), state, status, result, file)

    def _file_of(self, state: StudyState) -> StudyFile | None:
        """The very same object as long as nothing in it changed: much is remembered beside it."""
        document = state.file or run_folder.read_json(self._folder / STUDY)
        if not self._asked or self._asked != (document, state.turned):
            self._asked, self._file = (document, state.turned), file_of(document, state)
        return self._file

    def _result_of(self, whole: bool) -> JsonDocument | None:
        path = self._folder / RESULT
        try:
            stat = path.stat()
        except OSError:
            return None
        signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino, whole)
        if signature != self._signature:
            self._result = (
                run_folder.read_json(path) if whole else msgspec.to_builtins(read_part(path, BesideJournal))
            )
            self._signature = signature
        return self._result
