"""A bar in the terminal, where somebody watches.

A progress bar for a calibration; silent where nobody watches.

How far fANOVA or SHAP is: a bar in a terminal, elsewhere a plain line now and then on stderr.

How a study goes on, for whoever watches a terminal; elsewhere one plain line per trial on stderr.

A progress bar for one run, fed by the run's own progress page; silent where nobody watches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from engine.run import progress as pages
from tuning.sensitivity.job import NAMES, Method
from workbench.text import words
from workbench.text.output import progress_console, say

if TYPE_CHECKING:
    from rich.progress import Progress

    from engine.launch.measure.calibrate import Progress as Measured
    from tuning.controllers.status import Update
    from tuning.execution.signals import Interruption
    from tuning.spec.study_file import StudyFile
    from tuning.storage.state import Trial


class WatchedBar:
    """While entered, a bar made by ``make``; none where the output is no terminal."""

    def __init__(self, make: Callable[[Any], Progress], doing: str, total: float) -> None:
        console = progress_console()
        self._bar: Progress | None = make(console) if console.is_terminal else None
        self._task: Any = self._bar.add_task(doing, total=total) if self._bar else None

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()


_STOPPING = "stopping; what is done is kept"


class CalibrateProgress:
    """Shows what is being measured, and passes Ctrl-C on."""

    def __init__(self, interruption: Interruption) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = progress_console()
        columns = (
            TextColumn("{task.description:<32}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._interruption, self._told = interruption, False
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task: Any = self._bar.add_task("starting ranks", total=None)

    def __enter__(self) -> CalibrateProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def draw(self, measured: Measured) -> None:
        """Show what is measured now."""
        self._bar.update(
            self._task, description=measured.label, completed=measured.done, total=measured.total
        )

    def should_stop(self) -> bool:
        """Whether somebody pressed Ctrl-C."""
        if self._interruption.seen and not self._told:
            self._told = True
            say(_STOPPING)
        return bool(self._interruption.seen)


#: Without a terminal, lines are this far apart.
_APART_SECONDS = 1.0


class SensitivityProgress(WatchedBar):
    """``update`` takes the part that is done, 0 to 1, and what is being done."""

    def __init__(self, method: Method) -> None:
        self._name = NAMES[method]
        self._began, self._said = time.monotonic(), 0.0
        super().__init__(_sensitivity_bar, self._name, 1.0)

    def update(self, part: float, doing: str) -> None:
        """Show it."""
        if self._bar:
            self._bar.update(self._task, completed=part, description=f"{self._name}: {doing}")
        elif time.monotonic() - self._said >= _APART_SECONDS:
            self._said = time.monotonic()
            say(f"{self._name}: {doing}, {part:.0%} after {self._said - self._began:.0f} s")


def _sensitivity_bar(console: Any) -> Progress:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (BarColumn(20), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(TextColumn("{task.description}", markup=False), *columns, console=console, transient=True)


#: How the reason of a trial begins that a race ended (:mod:`tuning.pruning`).
EARLY = "stopped early: "


class StudyProgress(WatchedBar):
    """A bar of trials with the current configuration and the best so far."""

    def __init__(self, file: StudyFile) -> None:
        self._file = file
        self._best: Trial | None = None
        self._running: Trial | None = None
        super().__init__(_study_bar, "starting", file.trials)

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


def _study_bar(console: Any) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("trials"), TimeElapsedColumn())
    what = TextColumn(
        "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
    )
    return Progress(what, *columns, console=console, transient=True)


_STOPPING_RUN = "stopping after this step; Ctrl-C again kills the run"


class RunProgress(WatchedBar):
    """Draws whenever the launcher asks whether to stop, ten times a second."""

    def __init__(self, steps: int, interruption: Interruption) -> None:
        self.folder: Path | None = None
        self._steps, self._interruption = steps, interruption
        self._told = False
        super().__init__(_train_bar, "starting ranks", steps)

    def follow(self, folder: Path) -> None:
        """From now on, show this run."""
        self.folder = folder

    def should_stop(self) -> bool:
        """Whether somebody pressed Ctrl-C; shows on the way where the slowest rank stands."""
        self._draw()
        if self._interruption.seen and not self._told:
            self._told = True
            say(_STOPPING_RUN)
        return bool(self._interruption.seen)

    def _draw(self) -> None:
        ranks = pages.read(self.folder) if self._bar and self.folder else []
        if self._bar and ranks:
            slowest = min(ranks, key=lambda rank: rank.step)
            done = min(slowest.step, self._steps)
            self._bar.update(self._task, completed=done, description=_doing(slowest))


def _doing(rank: pages.RankProgress) -> str:
    name = rank.phase.replace("_", " ")
    outside = rank.phase in ("starting", "building", "validation", "finished", "checkpoint")
    return name if outside else f"training, {name}"


def _train_bar(console: Any) -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description:<32}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
