"""How a study is kept while it runs: its journal, the controllers that share it, and where Optuna's tools find it."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config.errors import InputError
from engine.run import run_folder
from engine.run.calibration import fingerprint
from tuning import board, opening, owner, studyfile, succession
from tuning.crew import Crew, Member
from tuning.inheritance import inherit
from tuning.journal import Journal, UnreachableError
from tuning.readers import JOURNAL
from tuning.state import StudyState
from tuning.studyfile import StudyFile

if TYPE_CHECKING:
    from tuning.mirror_place import Place
    from tuning.postgres.database import Database

#: Says that the journal in a folder is a copy of one in a database.
STORAGE = "storage.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """What a controller works with. ``heard``: so many answers in the journal are from before the study was started."""

    file: StudyFile
    journal: Journal
    crew: Crew
    heard: int
    place: Place | None = None

    def close(self) -> bool:
        """Leave the others, and let go of the journal; whether others go on in the same folder."""
        self.crew.leave()
        go_on = any(member["here"] for member in self.crew.told())
        self.journal.close()
        return go_on


def prepare(folder: Path, file: StudyFile, storage: str | None) -> None:
    """Before anything is decided from a study's folder: of one in a database, let the copy there be up to date.

    Raises:
        InputError: the database does not answer or holds another study, or the study is in one that was not given.
    """
    marked = run_folder.read_json(folder / STORAGE)
    if storage is None:
        if marked is not None:
            remedy = f"is kept in {marked.get('storage')}; give that as --storage, or in WORKBENCH_STORAGE"
            raise InputError("study", file.name, remedy)
        return
    if owner.is_alive(status := run_folder.read_json(folder / run_folder.STATUS)):
        raise owner.busy(folder.name, (status or {})["owner"], _ways(storage))
    opening.prepare(folder, file)
    from tuning.postgres.journal import DatabaseJournal, adopt

    database = _database(storage)
    try:
        adopt(folder / JOURNAL, database, folder.name)
        DatabaseJournal(folder / JOURNAL, database, folder.name).close()
    except UnreachableError as problem:
        raise InputError("storage", database.address.shown, f"{problem}; try again") from None
    finally:
        database.close()
    board.write(folder / STORAGE, {"storage": database.address.shown})


def follow(folder: Path, file: StudyFile, storage: str | None) -> tuple[Path, StudyFile]:
    """Where a study goes on by now, and the file to go on with, as :func:`succession.follow` has it.

    Raises:
        InputError: a folder cannot be written, or the database does not answer or has another study there.
    """
    begin = succession.begin if storage is None else partial(_begin_in_database, storage)
    return succession.follow(folder, file, begin)


def _begin_in_database(storage: str, folder: Path, file: StudyFile, state: StudyState) -> None:
    """Let the database have the study that goes on, once, and this home a copy. Nothing is written to the study before
    meanwhile: we have its turn.
    """
    from tuning.postgres.journal import DatabaseJournal, put

    place, database = folder.parent / file.name, _database(storage)
    with closing(database):
        try:
            with closing(DatabaseJournal(folder / JOURNAL, database, folder.name)) as before, before.turn():
                state = before.state
                if not before.has_begun(file.name):
                    put(database, file.name, list(map(json.dumps, succession.lines(folder, file, state))))
        except UnreachableError as problem:
            raise InputError("storage", database.address.shown, f"{problem}; try again") from None
    prepare(place, file, storage)
    succession.hand_over(folder, place, state)
    status = run_folder.read_json(folder / run_folder.STATUS) or {}
    if not status.get("continued_in"):  # no controller of this home was there when it was widened
        board.write(folder / run_folder.STATUS, status | {"state": "continued", "continued_in": file.name})


def keep(
    folder: Path, file: StudyFile, join: bool, heard: int | None = None, storage: str | None = None
) -> Kept:
    """Be a controller of a study, the only one unless it may ``join`` others, as it may in a database.

    Raises:
        InputError: another study has this name, a process runs it already, or its folder cannot be written.
    """
    opening.prepare(folder, file)
    me = owner.take(folder, join and storage is None, _ways(storage))
    try:
        if storage is None:
            return _kept(folder, file, Journal(folder / JOURNAL), Crew(folder, me), None, heard)
        return _kept_in_database(folder, file, me, storage, heard)
    except BaseException:
        owner.give_up(folder)
        raise


def _ways(storage: str | None) -> str:
    return "with --join" if storage is None else "from another --home"


def _kept_in_database(folder: Path, file: StudyFile, me: Member, storage: str, heard: int | None) -> Kept:
    from tuning.postgres.crew import DatabaseCrew
    from tuning.postgres.journal import DatabaseJournal
    from tuning.postgres.place import InDatabase

    database = _database(storage)
    crew, place = DatabaseCrew(folder, me, database, folder.name), InDatabase(database.address, folder.name)
    try:
        journal = DatabaseJournal(folder / JOURNAL, database, folder.name)
        _check_machine(journal, file)
        return _kept(folder, file, journal, crew, place, heard)
    except UnreachableError as problem:
        database.close()
        raise InputError("storage", database.address.shown, f"{problem}; try again") from None
    except BaseException:
        database.close()
        raise


def _kept(
    folder: Path, file: StudyFile, journal: Journal, crew: Crew, place: Place | None, heard: int | None
) -> Kept:
    try:
        with journal.turn():
            file = _file_of_others(journal, file) if crew.others() else file
            opening.begin(journal, folder, file)
            inherit(folder, file, journal)
            answered = len(journal.answered) if heard is None else heard
            return Kept(file, journal, crew, crew.join(answered), place)
    except BaseException:
        journal.close()
        raise


def _database(storage: str) -> Database:
    from tuning.postgres.address import address
    from tuning.postgres.database import Database

    database = Database(address(storage))
    database.begin()
    return database


def _check_machine(journal: Journal, file: StudyFile) -> None:
    """Raise unless this machine is of the kind that the study measures; a simulated one is the same anywhere."""
    known, here = journal.state.machine, fingerprint.here().id
    if known is not None and known != here and file.simulate is None:
        remedy = f"is measured on machines of kind {known}, and this is one of kind {here}: values would not compare"
        raise InputError("study", file.name, f"{remedy}; give it another name here")


def _file_of_others(journal: Journal, file: StudyFile) -> StudyFile:
    """Who joins others works on what they work on: a budget is changed by command."""
    known = journal.state.file
    return file if known is None or known == file.resolved() else studyfile.parse(known)
