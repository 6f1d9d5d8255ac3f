"""Opens a study: checks that it is the same, prepares its folder, and keeps journal and controllers while it runs."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.config.errors import InputError
from engine.run import ownership, run_folder
from engine.run.calibration import fingerprint
from engine.run.ownership import Owner
from engine.run.run_folder import JsonDocument
from tuning.controllers import status, successor, warm_start
from tuning.controllers.status import write
from tuning.spec import study_file
from tuning.spec.study_file import StudyFile
from tuning.spec.terms import as_written
from tuning.storage import controllers, study_folder
from tuning.storage.controllers import StudyControllers, StudyStatus
from tuning.storage.journal import Journal, JournalReader, UnreachableError
from tuning.storage.state import StudyState
from tuning.storage.study_folder import JOURNAL

if TYPE_CHECKING:
    from tuning.sampling.optuna_export_storage import OptunaStorage
    from tuning.storage.postgres.database import Database


@dataclass(frozen=True, slots=True)
class ResumableStudy:
    """A study to go on with: its file, and its journal, of which each line is read once however often one looks."""

    file: StudyFile
    journal: JournalReader

    @property
    def folder(self) -> Path:
        """Where the study lives."""
        return self.journal.path.parent


def begin(folder: Path, file: StudyFile, storage: str | None) -> ResumableStudy:
    """The study that a file asks for, as it stands: with what was chosen when it began, where it goes on by now.

    Raises:
        InputError: another study has this name, a study that it inherits is missing, its folder cannot be written, or
            the database does not answer.
    """
    reader = JournalReader(folder / JOURNAL)
    if storage is None:
        warm_start.check(folder, file, reader.look())
    prepare_storage(reader, file, storage)
    file = restore_choices(reader, file)
    check_same(reader.look().file, file)
    return follow(ResumableStudy(file, reader), storage)


def prepare_folder(reader: JournalReader, file: StudyFile) -> None:
    """Make the folder, unless another study with this name lives there.

    Raises:
        InputError: what may not change inside a study is different, or the folder cannot be made.
    """
    folder = reader.path.parent
    check_same(reader.look().file, file)
    try:
        (folder / run_folder.COMMANDS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remedy = f"the study's folder cannot be written ({error.strerror}); give another --home or free space"
        raise InputError("home", str(folder), remedy) from None


def restore_choices(reader: JournalReader, file: StudyFile) -> StudyFile:
    """The file to go on with: where it leaves the space or the confirmation to us, what was chosen when its study began
    stays chosen.

    Raises:
        InputError: it asks another question, for which that could not be chosen.
    """
    recorded, given_file = reader.look().file, reader.path.with_name(study_folder.STUDY_GIVEN)
    file = file.with_confirmation_of(recorded) if recorded else file
    if file.space is not None or recorded is None or _named_space(given_file):
        return file
    check_same(recorded, file, with_space=False)
    return file.with_chosen(recorded["space"])


def _named_space(path: Path) -> bool:
    """Whether the file that a study began with says what is searched."""
    try:
        return study_file.load(path).space is not None
    except InputError:
        return True


def check_same(recorded: JsonDocument | None, file: StudyFile, with_space: bool = True) -> None:
    """Refuse to go on with a study whose question has changed; without its space, the rest of the question."""
    if recorded is None:
        return
    before, now = as_written(study_file.parse(recorded).identity()), as_written(file.identity())
    different = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if not with_space:
        different = [key for key in different if not key.startswith("space.")]
    if different:
        different.sort(key=lambda key: key != "objective")
        text = ", ".join(
            f"{key} ({_words(before.get(key))} before, now {_words(now.get(key))})" for key in different[:2]
        )
        more_text = f" and {len(different) - 2} more" if len(different) > 2 else ""
        remedy = f"a study with this name asks another question: {text}{more_text}; choose another name"
        raise InputError("name", file.name, remedy)


def begin_journal(opened: Journal, folder: Path, file: StudyFile) -> None:
    """Let the journal begin with what the study asks, or go on with what has been allowed to grow."""
    resolved = file.resolve()
    if is_new := opened.state.file != resolved:
        machine = fingerprint.this_machine().id
        opened.append("study", file=resolved, fingerprint=file.fingerprint(), machine=machine)
    if is_new or not (folder / study_folder.STUDY).exists():
        status.write(folder / study_folder.STUDY, resolved)
        _write_text(folder / study_folder.STUDY_GIVEN, file.text)


def lease() -> ownership.Owner:
    """This process, as a trial's lease names it."""
    return ownership.this_process()


def _write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError("home", str(path), f"cannot be written ({error.strerror})") from None


def _words(value: Any) -> str:
    return "not there" if value is None else str(value)


#: Says that the journal in a folder is a copy of one in a database.
STORAGE = "storage.json"


@dataclass(frozen=True, slots=True)
class StudyStorage:
    """What a controller works with. ``heard``: so many answers in the journal are from before the study was started."""

    file: StudyFile
    journal: Journal
    members: StudyControllers
    heard: int
    place: OptunaStorage | None = None

    def close(self) -> bool:
        """Leave the others, and let go of the journal; whether others go on in the same folder."""
        self.members.leave()
        go_on = any(map(self.members.is_in_folder, self.members.living()))
        self.journal.close()
        return go_on


def prepare_storage(reader: JournalReader, file: StudyFile, storage: str | None) -> None:
    """Before anything is decided from a study's folder: of one in a database, let the copy there be up to date.

    Raises:
        InputError: the database does not answer or holds another study, or the study is in one that was not given.
    """
    folder = reader.path.parent
    marked = run_folder.read_json(folder / STORAGE)
    if storage is None:
        if marked is not None:
            remedy = f"is kept in {marked.get('storage')}; give that as --storage, or in WORKBENCH_STORAGE"
            raise InputError("study", file.name, remedy)
        return
    status = StudyStatus.from_folder(folder)
    if status.alive:
        raise controllers.busy(folder.name, status.owner, _ways(file, storage))
    prepare_folder(reader, file)
    from tuning.storage.postgres.journal import DatabaseJournal, adopt

    database = _database(storage)
    try:
        adopt(folder / JOURNAL, database, folder.name)
        DatabaseJournal(folder / JOURNAL, database, folder.name).close()
    except UnreachableError as problem:
        raise InputError("storage", database.address.shown, f"{problem}; try again") from None
    finally:
        database.close()
    write(folder / STORAGE, {"storage": database.address.shown})


def follow(opening: ResumableStudy, storage: str | None) -> ResumableStudy:
    """Where a study goes on by now, as :func:`tuning.controllers.successor.follow` has it.

    Raises:
        InputError: a folder cannot be written, or the database does not answer or has another study there.
    """
    begin = successor.begin if storage is None else partial(_begin_in_database, storage)
    reader, file = successor.follow(opening.journal, opening.file, begin)
    return ResumableStudy(file, reader)


def _begin_in_database(storage: str, folder: Path, file: StudyFile, state: StudyState) -> None:
    """Let the database have the study that goes on, once, and this home a copy. Nothing is written to the study before
    meanwhile: we have its turn.
    """
    from tuning.storage.postgres.journal import DatabaseJournal, put

    place, database = folder.parent / file.name, _database(storage)
    with closing(database):
        try:
            with closing(DatabaseJournal(folder / JOURNAL, database, folder.name)) as before, before.turn():
                state = before.state
                if not before.has_begun(file.name):
                    put(database, file.name, list(map(json.dumps, successor.lines(folder, file, state))))
        except UnreachableError as problem:
            raise InputError("storage", database.address.shown, f"{problem}; try again") from None
    prepare_storage(JournalReader(place / JOURNAL), file, storage)
    successor.hand_over(folder, place, state)
    if not StudyStatus.from_folder(
        folder
    ).continued_in:  # no controller of this home was there when it was widened
        status = run_folder.read_json(folder / run_folder.STATUS) or {}
        write(folder / run_folder.STATUS, status | {"state": "continued", "continued_in": file.name})


def keep(
    opening: ResumableStudy, join: bool, heard: int | None = None, storage: str | None = None
) -> StudyStorage:
    """Be a controller of a study, the only one unless it may ``join`` others, as it may in a database.

    Raises:
        InputError: another study has this name, a process runs it already, or its folder cannot be written.
    """
    folder, file = opening.folder, opening.file
    prepare_folder(opening.journal, file)
    me = controllers.take(folder, join and storage is None, _ways(file, storage))
    try:
        if storage is None:
            opened = Journal(folder / JOURNAL, opening.journal)
            return _keep_study(folder, file, opened, StudyControllers(folder, me), None, heard)
        return _keep_in_database(folder, file, me, storage, heard)
    except BaseException:
        controllers.give_up(folder)
        raise


def _ways(file: StudyFile, storage: str | None) -> str:
    """How several would work on it together; a run that goes on has one controller."""
    if file.live is not None:
        return ""
    return (
        "work on it together with --join, "
        if storage is None
        else "work on it together from another --home, "
    )


def _keep_in_database(
    folder: Path, file: StudyFile, me: Owner, storage: str, heard: int | None
) -> StudyStorage:
    from tuning.sampling.optuna_export_storage import OptunaDatabase
    from tuning.storage.postgres.database import DatabaseControllers
    from tuning.storage.postgres.journal import DatabaseJournal

    database = _database(storage)
    members, place = (
        DatabaseControllers(folder, me, database, folder.name),
        OptunaDatabase(database.address, folder.name),
    )
    try:
        journal = DatabaseJournal(folder / JOURNAL, database, folder.name)
        _check_machine(journal, file)
        return _keep_study(folder, file, journal, members, place, heard)
    except UnreachableError as problem:
        database.close()
        raise InputError("storage", database.address.shown, f"{problem}; try again") from None
    except BaseException:
        database.close()
        raise


def _keep_study(
    folder: Path,
    file: StudyFile,
    journal: Journal,
    members: StudyControllers,
    place: OptunaStorage | None,
    heard: int | None,
) -> StudyStorage:
    try:
        with journal.turn():
            file = _file_of_others(journal, file) if members.other_members() else file
            begin_journal(journal, folder, file)
            warm_start.inherit(folder, file, journal)
            answered = len(journal.state.answers) if heard is None else heard
            return StudyStorage(file, journal, members, members.join(answered), place)
    except BaseException:
        journal.close()
        raise


def _database(storage: str) -> Database:
    from tuning.storage.postgres.database import Database, address

    database = Database(address(storage))
    database.begin()
    return database


def _check_machine(journal: Journal, file: StudyFile) -> None:
    """Raise unless this machine is of the kind that the study measures; a simulated one is the same anywhere."""
    machine, this_machine_id = journal.state.machine, fingerprint.this_machine().id
    if machine is not None and machine != this_machine_id and file.simulate is None:
        kinds = f"machines of kind {machine}, and this is one of kind {this_machine_id}"
        remedy = f"is measured on {kinds}: values would not compare"
        raise InputError("study", file.name, f"{remedy}; give it another name here")


def _file_of_others(journal: Journal, file: StudyFile) -> StudyFile:
    """Who joins others works on what they work on: a budget is changed by command."""
    recorded = journal.state.file
    return file if recorded is None or recorded == file.resolve() else study_file.parse(recorded)
