"""The study in Optuna's own SQLite file, for its tools; an index that is made again from the journal when in doubt."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

from tuning import journal, studyfile
from tuning.aims import Aim
from tuning.encoding import Encoding
from tuning.optuna_index import directions, frozen
from tuning.readers import DATABASE, JOURNAL
from tuning.state import StudyState

LOCK_SECONDS = 1.0


class Mirror:
    """Follows the journal. Whatever is wrong with the file, the study goes on."""

    def __init__(self, folder: Path, encoding: Encoding, several: Sequence[Aim] = ()) -> None:
        self._folder, self._encoding, self._several = folder, encoding, several
        self._storage: RDBStorage | None = None
        self._study: optuna.Study | None = None
        self._taken = 0

    def follow(self, state: StudyState) -> str:
        """Bring the file up to the journal; says what had to be done beyond adding trials. The first time, what is in
        the file is compared with the journal; from then on only what is new is added.
        """
        try:
            if self._taken and self._taken <= len(state.trials):
                for trial in self._frozen(state, self._taken):
                    self._open().add_trial(trial)
            else:
                self._add_missing(self._frozen(state))
            note = ""
        except Exception as error:  # an index is not worth a study: whatever it is, start the file afresh
            note = self._start_afresh(self._frozen(state), error)
        running = (place for place, trial in enumerate(state.trials) if trial.outcome is None)
        self._taken = next(running, len(state.trials)) if self._study is not None else 0
        return note

    def _frozen(self, state: StudyState, first: int = 0) -> list[FrozenTrial]:
        told = (frozen(trial, self._encoding, self._several) for trial in state.trials[first:])
        return [found for found in told if found]

    def check(self, state: StudyState) -> str:
        """Read the whole file again, as others will, and make it anew if it was harmed; says what had to be done."""
        self.close()
        harm = _harm(self._folder / DATABASE)
        return self._start_afresh(self._frozen(state), ValueError(harm)) if harm else self.follow(state)

    def close(self) -> None:
        """Let go of the file."""
        if self._storage is not None:
            self._storage.remove_session()
            self._storage.engine.dispose()
        self._storage = self._study = None

    def _start_afresh(self, wanted: list[FrozenTrial], error: Exception) -> str:
        reason = " ".join(str(error).split())[:160]
        try:
            self.close()
            aside = self._set_aside()
            self._add_missing(wanted)
            return f"{DATABASE} was rebuilt from the journal ({reason}); the old file is {aside}"
        except Exception as second:  # read-only or full: the journal decides whether the study can go on
            self.close()
            return f"{DATABASE} cannot be kept ({second}); the study goes on without it"

    def _add_missing(self, wanted: list[FrozenTrial]) -> None:
        study = self._open()
        known = study.get_trials(deepcopy=False)
        if [_identity(trial) for trial in known] != [_identity(trial) for trial in wanted[: len(known)]]:
            raise ValueError("it disagrees with the journal")
        for trial in wanted[len(known) :]:
            study.add_trial(trial)

    def _open(self) -> optuna.Study:
        if self._study is None:
            optuna.logging.set_verbosity(optuna.logging.ERROR)
            logging.getLogger("alembic").setLevel(logging.ERROR)
            options = {"connect_args": {"timeout": LOCK_SECONDS}}
            self._storage = RDBStorage(f"sqlite:///{self._folder / DATABASE}", engine_kwargs=options)
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=self._folder.name,
                directions=directions(self._several),
                load_if_exists=True,
            )
        return self._study

    def _set_aside(self) -> str:
        path = self._folder / DATABASE
        aside = path.with_name(f"{DATABASE}.{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.aside")
        if path.exists():
            path.replace(aside)
        for suffix in ("-journal", "-wal", "-shm"):
            path.with_name(DATABASE + suffix).unlink(missing_ok=True)
        return aside.name


def _harm(path: Path) -> str:
    """What SQLite finds wrong with a file; nothing of one that is not there or locked."""
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=LOCK_SECONDS)
        ) as database:
            found = str(database.execute("pragma quick_check").fetchone()[0])
    except sqlite3.OperationalError:
        return ""
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if found == "ok" else found


def rebuild(folder: Path) -> str:
    """Make a study's Optuna file agree with its journal; says what had to be done, if anything.

    Raises:
        InputError: the journal's own study file is refused by this version.
    """
    state = journal.load(folder / JOURNAL)
    if state.file is None:
        return "the journal names no study"
    file = studyfile.parse(state.file)
    mirror = Mirror(folder, Encoding(file.search_space), file.aims if file.objectives else ())
    note = mirror.check(state)
    mirror.close()
    return note


def _identity(trial: FrozenTrial) -> tuple[Any, ...]:
    values = [round(value, 6) for value in trial.values or ()]
    return trial.user_attrs.get("number"), trial.state, values, trial.params
