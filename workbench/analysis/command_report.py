"""The command that a study tunes, as it was and with the best values, as its user would type it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuning.report.study_result import StudyResult
    from tuning.spec.study_file import StudyFile


@dataclass(frozen=True, slots=True)
class CommandReport:
    """``trainer`` is the kind that was recognised, ``today`` the command as it was given, ``best`` with the values of
    the trial that the study recommends; None while there is none. What stands in JSON files is in ``files``, by the
    path in the command.
    """

    trainer: str
    today: str
    directory: str
    best: str | None = None
    files: dict[str, dict[str, Any]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The ``command`` of a study's JSON."""
        return asdict(self)


def report_command(file: StudyFile | None, result: StudyResult) -> CommandReport | None:
    """Of a study as it stands; None of one whose trials are ranks of this project."""
    if file is None or file.command is None:
        return None
    command = file.command
    report = CommandReport(command.kind.title, command.today.text, command.directory)
    chosen = result.recommended or result.best
    if chosen is None:
        return report
    best = command.with_values(file.search_space.config(chosen.config).trainer)
    files = {word: dict(tree) for word, tree in best.files.items() if tree != command.today.files.get(word)}
    return CommandReport(report.trainer, report.today, report.directory, best.text, files or None)


def line(report: CommandReport) -> str:
    """What to run now."""
    if report.best is None:
        return f"{report.trainer}: {report.today}"
    changed = f" (with the changed {', '.join(report.files)}: workbench export)" if report.files else ""
    same = " as it is" if report.best == report.today else ""
    return f"train with the command{same}: {report.best}{changed}"
