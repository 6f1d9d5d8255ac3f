"""The study as Optuna's own tools read it, in SQLite or PostgreSQL; an index that is made again from the journal when
in doubt.

:func:`rebuild` brings the database up to date with the whole journal, at a study's end and when indexes are made again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

from engine.config.errors import several
from tuning.sampling.optuna_export_storage import OptunaStorage, SqliteFile
from tuning.sampling.optuna_study import directions, to_frozen_trial
from tuning.space.encoding import Encoding
from tuning.spec import study_file
from tuning.spec.objectives import Aim
from tuning.storage.controllers import StudyStatus, update_status
from tuning.storage.journal import TURN, FileLock, JournalReader
from tuning.storage.state import StudyState, Trial
from tuning.storage.study_folder import DATABASE, JOURNAL

#: So many trials are added at most before the study goes on: about a quarter of a second.
LOT = 20
#: To lack so many is nothing to speak of: it takes about a second.
MOMENT = 100
#: What tells two trials apart: number, state, values and parameters.
_Identity = tuple[Any, ...]


class Mirror:
    """Follows the journal. Whatever is wrong with the database, the study goes on. Of several controllers the one that
    told last writes, in its turn. One that lacks many trials catches up bit by bit, ``lot`` trials a call.
    """

    def __init__(
        self,
        folder: Path,
        encoding: Encoding,
        aims: Sequence[Aim] = (),
        place: OptunaStorage | None = None,
        lot: int | None = None,
    ) -> None:
        self._name, self._encoding, self._several = folder.name, encoding, aims
        self._place, self._lot = place or SqliteFile(folder), lot or LOT
        self.name = self._place.name
        self._storage: RDBStorage | None = None
        self._study: optuna.Study | None = None
        self._opened: tuple[object, int] = (None, -1)
        self._taken: set[int] = set()
        self._expected: dict[int, _Identity] = {}
        self._missing: dict[int, Trial] = {}
        self._compared = 0

    @property
    def missing(self) -> int:
        """How many trials it still lacks, as far as that is known."""
        return len(self._missing)

    @property
    def lag(self) -> str:
        """That in words; nothing of one that has them all."""
        return lag(self.name, self.missing) if self.missing else ""

    @property
    def slow(self) -> str:
        """The same, if it takes more than a moment to add them."""
        return self.lag if self.missing > MOMENT else ""

    def follow(self, state: StudyState) -> str:
        """Bring it nearer to the journal; says what had to be done beyond adding trials. What is there is compared with
        the journal once, and what others wrote since when they did.
        """
        try:
            self._catch_up(state)
        except Exception as error:  # an index is not worth a study: whatever it is, start afresh
            return self._start_afresh(state, error)
        return ""

    def check(self, state: StudyState) -> str:
        """Read all of it again, as others will, and make it anew if it was harmed; says what had to be done. What it
        lacks is added by this and further calls of :meth:`follow`.
        """
        self.close()
        harm = self._place.harm()
        return self._start_afresh(state, ValueError(harm)) if harm else self.follow(state)

    def close(self) -> None:
        """Let go of it, and forget what is known of it."""
        if self._storage is not None:
            self._storage.remove_session()
            self._storage.engine.dispose()
        self._storage = self._study = None
        self._taken, self._expected, self._missing, self._compared = set(), {}, {}, 0

    def _start_afresh(self, state: StudyState, error: Exception) -> str:
        reason = _short(error)
        try:
            self.close()
            aside = self._place.set_aside()
            self._catch_up(state)
            progress = "is being rebuilt" if self.missing else "was rebuilt"
            return f"{self._place.name} {progress} from the journal ({reason}); {aside}"
        except Exception as second:  # read-only or full: the journal decides whether the study can go on
            self.close()
            return f"{self._place.name} cannot be kept ({_short(second)}); the study goes on without it"

    def _catch_up(self, state: StudyState) -> None:
        study = self._open()
        self._take(state)
        self._compare(study.get_trials(deepcopy=False))
        for trial in list(self._missing.values())[: self._lot]:
            if frozen := to_frozen_trial(trial, self._encoding, self._several):
                study.add_trial(frozen)
            self._compared += 1
            del self._missing[trial.number]

    def _take(self, state: StudyState) -> None:
        """Expect the trials that ended since, in the order in which they did."""
        new = [
            trial for trial in state.trials if trial.outcome is not None and trial.number not in self._taken
        ]
        for trial in sorted(new, key=lambda trial: (trial.ended_unix or 0.0, trial.number)):
            self._taken.add(trial.number)
            if frozen := to_frozen_trial(trial, self._encoding, self._several):
                self._expected[trial.number], self._missing[trial.number] = _identity(frozen), trial

    def _compare(self, stored: Sequence[FrozenTrial]) -> None:
        """Check what somebody else wrote, now or before: each trial as the journal has it, and once."""
        for trial in stored[self._compared :]:
            number = trial.user_attrs.get("number")
            if number not in self._missing or self._expected[number] != _identity(trial):
                raise ValueError("it disagrees with the journal")
            del self._missing[number]
        self._compared = len(stored)

    def _open(self) -> optuna.Study:
        if self._study is None or not self._is_the_same():
            self.close()
            optuna.logging.set_verbosity(optuna.logging.ERROR)
            logging.getLogger("alembic").setLevel(logging.ERROR)
            self._storage = RDBStorage(self._place.url, engine_kwargs=self._place.engine_options)
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=self._name,
                directions=directions(self._several),
                load_if_exists=True,
            )
            self._place.check_study(self._study)
            self._opened = self._storage_mark(self._storage)
        return self._study

    def _is_the_same(self) -> bool:
        """Whether it is what was opened: another controller may have made it anew, or somebody removed it."""
        try:
            return self._storage is not None and self._storage_mark(self._storage) == self._opened
        except KeyError:  # no study of this name is in the database any more
            return False

    def _storage_mark(self, storage: RDBStorage) -> tuple[object, int]:
        return self._place.mark(), storage.get_study_id_from_name(self._name)


def lag(name: str, missing: int) -> str:
    """What a database waits for that lacks so many trials."""
    added = "it is added" if missing == 1 else "they are added"
    return (
        f"{name} lacks {several(missing, 'trials')}: {added} while the study runs, or by `workbench reindex`"
    )


def _short(error: Exception) -> str:
    """In one line: a database tells the statement, too."""
    return " ".join(str(error).partition("[SQL:")[0].split())[:160]


def _identity(trial: FrozenTrial) -> _Identity:
    values = [round(value, 6) for value in trial.values or ()]
    return trial.user_attrs.get("number"), trial.state, values, trial.params


#: Who waits for a turn gets it between two lots.
BREATH_SECONDS = 0.005
#: How far it is is said so often.
APART_SECONDS = 5.0
#: Trouble that comes again ends it: the next start tries anew.
_MOST_TROUBLES = 2


def drain(
    mirror: Mirror,
    lot: Callable[[], str],
    tell: Callable[[str], None],
    stopped: Callable[[], object] = lambda: False,
) -> None:
    """Add all that is missing: ``lot`` adds some, in a turn of its own, and says what was wrong. ``tell`` is told how
    many are left, now and then, if there are many; once it is ``stopped``, what is left waits for the next time.
    """
    reported_at, troubles = 0.0, 0
    while mirror.missing and troubles < _MOST_TROUBLES and not stopped():
        if mirror.slow and time.monotonic() - reported_at >= APART_SECONDS:
            reported_at = time.monotonic()
            lacks, them = several(mirror.missing, "trials"), "it" if mirror.missing == 1 else "them"
            tell(f"{mirror.name} lacks {lacks}; adding {them} (Ctrl-C leaves {them} for later)")
        troubles += bool(lot())
        time.sleep(BREATH_SECONDS)


def rebuild(folder: Path, tell: Callable[[str], None] = lambda _: None, most: int | None = None) -> str:
    """Make a study's Optuna file agree with its journal; says what had to be done, if anything. It may run meanwhile.
    A study of more than ``most`` trials is left as it is.

    Raises:
        InputError: the journal's own study file is refused by this version.
    """
    reader = JournalReader(folder / JOURNAL)
    state = reader.look()
    if state.file is None:
        return "the journal names no study"
    file = study_file.parse(state.file)
    if most is not None and len(state.trials) > most:
        return _note_lag(folder, lag(DATABASE, len(state.trials)))
    encoding, notes = Encoding(file.search_space), list[str]()
    with closing(Mirror(folder, encoding, file.aims if file.objectives else ())) as mirror:
        with _turn(folder):
            notes.append(mirror.check(reader.look()))

        def lot() -> str:
            with _turn(folder):
                notes.append(mirror.follow(reader.look()))
            return notes[-1]

        drain(mirror, lot, tell)
        notes.append(_note_lag(folder, mirror.lag))
    return "; ".join(note for note in notes if note)


def _note_lag(folder: Path, lag: str) -> str:
    """Those words, which a study's status has from now on, too, unless somebody runs it."""
    status = StudyStatus.from_folder(folder)
    if status != StudyStatus() and status.optuna_lag != lag and not status.alive:
        with suppress(OSError):
            update_status(folder, optuna_lag=lag)
    return lag


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Nobody else writes meanwhile; where the folder cannot be written, nobody does."""
    lock = FileLock(folder / TURN)
    try:
        lock.__enter__()
    except OSError:
        yield
        return
    try:
        yield
    finally:
        lock.__exit__(None, None, None)
