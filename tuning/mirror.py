"""The study as Optuna's own tools read it, in SQLite or PostgreSQL; an index that is made again from the journal when
in doubt.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

from tuning import journal, studyfile
from tuning.aims import Aim
from tuning.encoding import Encoding
from tuning.mirror_place import Place, SqliteFile
from tuning.optuna_index import directions, frozen
from tuning.readers import JOURNAL
from tuning.state import StudyState, Trial


class Mirror:
    """Follows the journal. Whatever is wrong with the database, the study goes on. Of several controllers the one that
    told last writes, in its turn.
    """

    def __init__(
        self, folder: Path, encoding: Encoding, several: Sequence[Aim] = (), place: Place | None = None
    ) -> None:
        self._name, self._encoding, self._several = folder.name, encoding, several
        self._place = place or SqliteFile(folder)
        self._storage: RDBStorage | None = None
        self._study: optuna.Study | None = None
        self._taken: set[int] = set()

    def follow(self, state: StudyState) -> str:
        """Bring it up to the journal; says what had to be done beyond adding trials. The first time, and whenever
        others may have written, what is there is compared with the journal; else only what is new is added.
        """
        new = [
            trial for trial in state.trials if trial.outcome is not None and trial.number not in self._taken
        ]
        try:
            if self._taken and len(new) <= 1:
                for trial in self._frozen(new):
                    self._open().add_trial(trial)
            else:
                self._add_missing(self._frozen(state.trials))
            note = ""
        except Exception as error:  # an index is not worth a study: whatever it is, start afresh
            note = self._start_afresh(self._frozen(state.trials), error)
        self._taken = self._taken | {trial.number for trial in new} if self._study is not None else set()
        return note

    def _frozen(self, trials: Sequence[Trial]) -> list[FrozenTrial]:
        told = (frozen(trial, self._encoding, self._several) for trial in trials)
        return [found for found in told if found]

    def check(self, state: StudyState) -> str:
        """Read all of it again, as others will, and make it anew if it was harmed; says what had to be done."""
        self.close()
        self._taken = set()
        harm = self._place.harm()
        return (
            self._start_afresh(self._frozen(state.trials), ValueError(harm)) if harm else self.follow(state)
        )

    def close(self) -> None:
        """Let go of it."""
        if self._storage is not None:
            self._storage.remove_session()
            self._storage.engine.dispose()
        self._storage = self._study = None

    def _start_afresh(self, wanted: list[FrozenTrial], error: Exception) -> str:
        reason = _short(error)
        try:
            self.close()
            aside = self._place.set_aside()
            self._add_missing(wanted)
            return f"{self._place.name} was rebuilt from the journal ({reason}); {aside}"
        except Exception as second:  # read-only or full: the journal decides whether the study can go on
            self.close()
            return f"{self._place.name} cannot be kept ({_short(second)}); the study goes on without it"

    def _add_missing(self, wanted: list[FrozenTrial]) -> None:
        """Trials lie there in the order in which they ended."""
        study = self._open()
        known = [_identity(trial) for trial in study.get_trials(deepcopy=False)]
        expected = {trial.user_attrs["number"]: _identity(trial) for trial in wanted}
        numbers = {identity[0] for identity in known}
        if len(numbers) < len(known) or any(expected.get(identity[0]) != identity for identity in known):
            raise ValueError("it disagrees with the journal")
        for trial in wanted:
            if trial.user_attrs["number"] not in numbers:
                study.add_trial(trial)

    def _open(self) -> optuna.Study:
        if self._study is None:
            optuna.logging.set_verbosity(optuna.logging.ERROR)
            logging.getLogger("alembic").setLevel(logging.ERROR)
            self._storage = RDBStorage(self._place.url, engine_kwargs=self._place.engine_options)
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=self._name,
                directions=directions(self._several),
                load_if_exists=True,
            )
            self._place.opened(self._study)
        return self._study


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


def _short(error: Exception) -> str:
    """In one line: a database tells the statement, too."""
    return " ".join(str(error).partition("[SQL:")[0].split())[:160]


def _identity(trial: FrozenTrial) -> tuple[Any, ...]:
    values = [round(value, 6) for value in trial.values or ()]
    return trial.user_attrs.get("number"), trial.state, values, trial.params
