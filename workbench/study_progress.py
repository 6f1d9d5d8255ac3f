"""How a study goes on, for whoever watches a terminal; elsewhere one plain line per trial on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench import words
from workbench.output import say
from workbench.progress_bar import WatchedBar

if TYPE_CHECKING:
    from rich.progress import Progress

    from tuning.controllers.status import Update
    from tuning.spec.study_file import StudyFile
    from tuning.storage.state import Trial

#: How the reason of a trial begins that a race ended (:mod:`tuning.pruning`).
EARLY = "stopped early: "


class StudyProgress(WatchedBar):
    """A bar of trials with the current configuration and the best so far."""

    def __init__(self, file: StudyFile) -> None:
        self._file = file
        self._best: Trial | None = None
        self._running: Trial | None = None
        super().__init__(_bar, "starting", file.trials)

    def update(self, news: Update) -> None:
        """Show what is new."""
        if news.note:
            self._say(f"note: {news.note}")
        if news.trial is not None and news.trial.outcome is None:
            self._running = news.trial
        elif news.trial is not None:
            self._running = self._running if news.elsewhere else None
            self._ended(news.trial, news.elsewhere)
        if self._bar:
            self._bar.update(self._task, completed=news.trials_done, description=self._doing(news))

    def _ended(self, trial: Trial, elsewhere: str) -> None:
        kept = all(violation <= 0 for violation in trial.constraints.values())
        searched = trial.value is not None and trial.confirms is None and kept
        if searched and (self._best is None or (trial.value or 0) > (self._best.value or 0)):
            self._best = trial
        self._say(self._line(trial, elsewhere))

    def _line(self, trial: Trial, elsewhere: str) -> str:
        who = f"{trial.source}, {elsewhere}" if elsewhere else trial.source
        what = f"trial {trial.number} ({who}): {self._file.search_space.label(trial.config)}"
        if trial.value is None:
            return f"{what}: {words.spoken(trial.outcome)}" + (f", {trial.reason}" if trial.reason else "")
        aim = self._file.aim
        bounds = words.around(*aim.bounds(trial.low, trial.high))
        measured = aim.words(trial.value) + (f" ({bounds})" if bounds else "")
        return f"{what}: {measured}" + _ending(trial)

    def _doing(self, news: Update) -> str:
        if news.state != "running":
            return words.spoken(news.state)
        now = self._file.search_space.label(self._running.config) if self._running else news.phase
        aim = self._file.aim
        best = f"best {aim.words(self._best.value)}; " if self._best else ""
        others = len(news.running) - (self._running is not None)
        return f"{best}{now}" + (f"; {others} more elsewhere" if others > 0 else "")

    def _say(self, text: str) -> None:
        if self._bar:
            self._bar.console.print(text, markup=False, soft_wrap=True)
        else:
            say(text)


def _ending(trial: Trial) -> str:
    """How a trial with a value ended, unless that is as usual: that it was pruned says that it stopped early."""
    ending = "" if trial.outcome == "completed" else f", {words.spoken(trial.outcome)}"
    if trial.outcome == "pruned" and trial.reason.startswith(EARLY):
        return f"{ending}: {trial.reason.removeprefix(EARLY)}"
    return ending + (f"; {trial.reason}" if trial.reason else "")


def _bar(console: Any) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("trials"), TimeElapsedColumn())
    what = TextColumn(
        "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
    )
    return Progress(what, *columns, console=console, transient=True)
