"""Opening a study's folder: is it the same study, and what has to be written before the first trial?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.run import ownership, run_folder
from engine.run.calibration import fingerprint
from tuning import board, journal, readers, studyfile
from tuning.journal import Journal
from tuning.studyfile import StudyFile


def prepare(folder: Path, file: StudyFile) -> None:
    """Make the folder, unless another study with this name lives there.

    Raises:
        InputError: what may not change inside a study is different, or the folder cannot be made.
    """
    check_same(journal.load(folder / readers.JOURNAL).file, file)
    try:
        (folder / run_folder.COMMANDS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remedy = f"the study's folder cannot be written ({error.strerror}); give another --home or free space"
        raise InputError("home", str(folder), remedy) from None


def as_before(folder: Path, file: StudyFile) -> StudyFile:
    """The file to go on with: where it leaves the space or the confirmation to us, what was chosen when its study began
    stays chosen.
    """
    known = journal.load(folder / readers.JOURNAL).file
    file = file.with_confirmation_of(known) if known else file
    if file.space is not None or known is None or _named_space(folder / readers.STUDY_GIVEN):
        return file
    return file.with_chosen(known["space"])


def _named_space(given: Path) -> bool:
    """Whether the file that a study began with says what is searched."""
    try:
        return studyfile.load(given).space is not None
    except InputError:
        return True


def check_same(known: dict[str, Any] | None, file: StudyFile) -> None:
    """Refuse to go on with a study whose question has changed."""
    if known is None:
        return
    before, now = studyfile.parse(known).identity(), file.identity()
    different = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if different:
        what = ", ".join(
            f"{key} ({_words(before.get(key))} before, now {_words(now.get(key))})" for key in different[:2]
        )
        more = f" and {len(different) - 2} more" if len(different) > 2 else ""
        remedy = f"a study with this name asks another question: {what}{more}; choose another name"
        raise InputError("name", file.name, remedy)


def begin(opened: Journal, folder: Path, file: StudyFile) -> None:
    """Let the journal begin with what the study asks, or go on with what has been allowed to grow."""
    resolved = file.resolved()
    if is_new := opened.state.file != resolved:
        machine = fingerprint.here().id
        opened.append("study", file=resolved, fingerprint=file.fingerprint(), machine=machine)
    if is_new or not (folder / readers.STUDY).exists():
        board.write(folder / readers.STUDY, resolved)
        _write_text(folder / readers.STUDY_GIVEN, file.text)


def lease() -> dict[str, Any]:
    """This process, as a trial's lease names it."""
    return ownership.me()


def _write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError("home", str(path), f"cannot be written ({error.strerror})") from None


def _words(value: Any) -> str:
    return "not there" if value is None else str(value)
