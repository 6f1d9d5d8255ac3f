"""How a study is kept while it runs: its journal, the controllers that share it, and where Optuna's tools find it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tuning import opening, owner, studyfile
from tuning.crew import Crew
from tuning.inheritance import inherit
from tuning.journal import Journal
from tuning.mirror_place import Place
from tuning.readers import JOURNAL
from tuning.studyfile import StudyFile


@dataclass(frozen=True, slots=True)
class Kept:
    """What a controller works with. ``heard``: so many answers in the journal are from before the study was started."""

    file: StudyFile
    journal: Journal
    crew: Crew
    heard: int
    place: Place | None = None

    def close(self) -> None:
        """Leave the others, and let go of the journal."""
        self.crew.leave()
        self.journal.close()


def keep(folder: Path, file: StudyFile, join: bool, heard: int | None = None) -> Kept:
    """Be a controller of a study, the only one unless it may ``join`` others.

    Raises:
        InputError: another study has this name, a process runs it already, or its folder cannot be written.
    """
    opening.prepare(folder, file)
    crew = Crew(folder, owner.take(folder, join))
    journal = Journal(folder / JOURNAL)
    try:
        with journal.turn():
            file = _file_of_others(journal, file) if crew.others() else file
            opening.begin(journal, folder, file)
            inherit(folder, file, journal)
            answered = len(journal.answered) if heard is None else heard
            return Kept(file, journal, crew, crew.join(answered))
    except BaseException:
        journal.close()
        raise


def _file_of_others(journal: Journal, file: StudyFile) -> StudyFile:
    """Who joins others works on what they work on: a budget is changed by command."""
    known = journal.state.file
    return file if known is None or known == file.resolved() else studyfile.parse(known)
