"""What a running study shows: status.json, result.json, and news for whoever displays progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import rundir
from engine.errors import InputError
from tuning import budgets, ranking, readers
from tuning.importance import importance
from tuning.results import Document, result
from tuning.state import StudyState, Trial
from tuning.studyfile import StudyFile

HEARTBEAT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Update:
    """News: a trial began (no outcome yet) or ended, or the study changed its state or has something to say."""

    state: str
    phase: str
    trials_done: int
    trials_total: int
    trial: Trial | None = None
    note: str = ""


class Board:
    """Keeps the study's folder readable while its owner works."""

    def __init__(
        self, folder: Path, file: StudyFile, owner: Document, on_update: Callable[[Update], None] | None
    ) -> None:
        self._folder, self._file, self._owner, self._on_update = folder, file, owner, on_update
        self._written = 0.0
        self._status: Document = {}
        self.state, self.phase = "running", "baseline"

    def show(
        self, study: StudyState, trial: Trial | None = None, note: str = "", run: str | None = None
    ) -> None:
        """Write the status and tell the display."""
        done = len(ranking.counted(study))
        self._status = {
            "study": self._file.name,
            "state": self.state,
            "phase": self.phase,
            "owner": self._owner,
            "current_run": run,
            "trials_done": done,
            "trials_total": self._file.trials,
            "budget": budgets.document(study, self._file, self.state),
            "skipped_illegal": sum(each.skipped_illegal for each in study.trials),
        }
        self._write_status()
        if self._on_update is not None:
            self._on_update(Update(self.state, self.phase, done, self._file.trials, trial, note))

    def heartbeat(self) -> None:
        """Show now and then that the owner lives."""
        if time.monotonic() - self._written > HEARTBEAT_SECONDS:
            self._write_status()

    def write_result(self, study: StudyState) -> Document:
        """Write the result so far; the knobs' importance is in it, so that the page needs no optuna."""
        document = result(study, self._file, self.state)
        document["importance"] = importance(study, self._file.search_space)
        self._write(readers.RESULT, document)
        return document

    def _write_status(self) -> None:
        self._written = time.monotonic()
        self._write(rundir.STATUS, self._status | {"updated_unix": time.time()})

    def _write(self, name: str, document: dict[str, Any]) -> None:
        write(self._folder / name, document)


def write(path: Path, document: Document) -> None:
    """Replace a document.

    Raises:
        InputError: the folder is full or read-only.
    """
    try:
        rundir.write_json(path, document)
    except OSError as error:
        remedy = f"cannot be written ({error.strerror}); free space or give another --home"
        raise InputError("home", str(path), remedy) from None
