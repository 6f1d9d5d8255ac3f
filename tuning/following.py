"""A study's folder that is looked at again and again: only what is new is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.run import run_folder
from tuning import readers
from tuning.growing import JournalReader
from tuning.readers import StudyView
from tuning.state import StudyState
from tuning.studyfile import StudyFile

#: What a study's result says that its journal does not.
BESIDE_JOURNAL = ("importance", "prior")


def parts(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Some keys of a document, those that are there; with thousands of trials that is much faster than all of it."""
    kind = msgspec.defstruct("Parts", [(name, Any, msgspec.UNSET) for name in names])
    try:
        found = msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError):
        document = run_folder.read_json(path) or {}
        return {name: document[name] for name in names if name in document}
    known = {name: getattr(found, name) for name in names}
    return {name: value for name, value in known.items() if value is not msgspec.UNSET}


class StudyReader:
    """Everything in a study's folder, as :func:`tuning.readers.load_study` reads it, except that ``result`` holds only
    what the journal does not say, unless this version refuses the study's file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._journal = JournalReader(folder / readers.JOURNAL)
        self._asked: tuple[Any, ...] = ()
        self._file: StudyFile | None = None
        self._signature: tuple[object, ...] = ()
        self._result: dict[str, Any] | None = None

    def view(self) -> StudyView:
        """The study now.

        Raises:
            InputError: there is no study in this folder.
        """
        state = self._journal.look()
        status = readers.status_of(self._folder, state)
        file = self._file_of(state)
        result = self._result_of(whole=file is None)
        name = self._folder.name
        return StudyView(self._folder, name, readers.state_of(status), state, status, result, file)

    def _file_of(self, state: StudyState) -> StudyFile | None:
        """The very same object as long as nothing in it changed: much is remembered beside it."""
        document = state.file or run_folder.read_json(self._folder / readers.STUDY)
        if not self._asked or self._asked != (document, state.turned):
            self._asked, self._file = (document, state.turned), readers.file_of(document, state)
        return self._file

    def _result_of(self, whole: bool) -> dict[str, Any] | None:
        path = self._folder / readers.RESULT
        try:
            found = path.stat()
        except OSError:
            return None
        signature = (found.st_mtime_ns, found.st_size, found.st_ino, whole)
        if signature != self._signature:
            self._result = run_folder.read_json(path) if whole else parts(path, BESIDE_JOURNAL)
            self._signature = signature
        return self._result
