"""One progress bar for everything that takes long: a bar where somebody watches a terminal, elsewhere plain lines."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from engine.run import progress as pages
from tuning.sensitivity.job import NAMES
from tuning.sensitivity.outcomes import Method
from workbench.text import words
from workbench.text.output import progress_console, say

if TYPE_CHECKING:
    from rich.progress import Progress

    from engine.launch.measure.calibrate import Progress as Measured
    from tuning.controllers.status import Update
    from tuning.execution.live.starter import Starter
    from tuning.execution.signals import Interruption
    from tuning.spec.study_file import StudyFile
    from tuning.storage.state import Trial

#: Without a terminal, lines about one piece of work are this far apart.
_APART_SECONDS = 1.0
#: How the reason of a trial begins that was stopped early (:mod:`tuning.analysis.early_stop`).
EARLY = "stopped early: "


class ProgressBar:
    """While entered, a bar on stderr; none where that is no terminal.

    ``unit`` stands behind the count of what is done; without a unit the bar shows percent. With an ``interruption``,
    ``should_stop`` passes Ctrl-C on, and says ``stopping`` the first time.
    """

    def __init__(
        self,
        description: str,
        total: float | None,
        unit: str | None = None,
        interruption: Interruption | None = None,
        stopping: str = "stopping; finished measurements are kept",
    ) -> None:
        console = progress_console()
        self.bar: Progress | None = _bar(console, unit) if console.is_terminal else None
        self._task: Any = self.bar.add_task(description, total=total) if self.bar else None
        self._interruption, self._stopping, self._stop_said = interruption, stopping, False

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def show(self, description: str, completed: float | None = None, total: float | None = None) -> None:
        """Draw what is being done, and how much is; None leaves a number as it was."""
        if self.bar:
            self.bar.update(self._task, description=description, completed=completed, total=total)

    def say(self, text: str) -> None:
        """A line above the bar, or alone where there is none."""
        if self.bar:
            self.bar.console.print(text, markup=False, soft_wrap=True)
        else:
            say(text)

    def should_stop(self) -> bool:
        """Whether somebody pressed Ctrl-C."""
        stop = self._interruption is not None and bool(self._interruption.seen)
        if stop and not self._stop_said:
            self._stop_said = True
            say(self._stopping)
        return stop


def _bar(console: Any, unit: str | None) -> Progress:
    from rich import progress as rich
    from rich.table import Column

    description = rich.TextColumn(
        "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
    )
    counts = (
        (rich.TaskProgressColumn(),) if unit is None else (rich.MofNCompleteColumn(), rich.TextColumn(unit))
    )
    times = (rich.TimeElapsedColumn(), *((rich.TimeRemainingColumn(),) if unit == "steps" else ()))
    return rich.Progress(description, rich.BarColumn(20), *counts, *times, console=console, transient=True)


class CalibrateProgress(ProgressBar):
    """Shows what is being measured."""

    def __init__(self, interruption: Interruption) -> None:
        super().__init__("starting ranks", None, "measurements", interruption)

    def draw(self, measured: Measured) -> None:
        """Show what is measured now."""
        self.show(measured.label, measured.done, measured.total)


class SensitivityProgress(ProgressBar):
    """How far fANOVA or SHAP is."""

    def __init__(self, method: Method) -> None:
        self._name = NAMES[method]
        self._began, self._said = time.monotonic(), 0.0
        super().__init__(self._name, 1.0)

    def update(self, part: float, description: str) -> None:
        """Show the part that is done, 0 to 1, and what is being done."""
        self.show(f"{self._name}: {description}", part)
        if not self.bar and time.monotonic() - self._said >= _APART_SECONDS:
            self._said = time.monotonic()
            say(f"{self._name}: {description}, {part:.0%} after {self._said - self._began:.0f} s")


class RunProgress(ProgressBar):
    """How far a run is, by its own progress page; drawn whenever the launcher asks whether to stop."""

    def __init__(self, steps: int | None, interruption: Interruption) -> None:
        """``steps`` are not known of a run with a time."""
        self.folder: Path | None = None
        self._most = math.inf if steps is None else steps
        stopping = "stopping after this step; Ctrl-C again kills the run"
        super().__init__("starting ranks", steps, "steps", interruption, stopping)

    def follow(self, folder: Path) -> None:
        """From now on, show this run."""
        self.folder = folder

    def should_stop(self) -> bool:
        """Whether somebody pressed Ctrl-C; shows on the way where the slowest rank stands."""
        ranks = pages.read(self.folder) if self.bar and self.folder else []
        if ranks:
            slowest = min(ranks, key=lambda rank: rank.step)
            outside = slowest.phase in ("starting", "building", "validation", "finished", "checkpoint")
            phase = slowest.phase.replace("_", " ")
            self.show(phase if outside else f"training, {phase}", min(slowest.step, self._most))
        return super().should_stop()


class LiveProgress(ProgressBar):
    """How far the run of a live study is, once its search is over."""

    def __init__(self, starter: Starter, steps: int, interruption: Interruption) -> None:
        self._starter, self._steps = starter, steps
        super().__init__("training on", steps, "steps", interruption, "stopping the run at its next step")

    def should_stop(self) -> bool:
        """Whether somebody pressed Ctrl-C; shows on the way where the slowest rank stands."""
        if (job := self._starter.current) is not None:
            self.show(f"{job.id} trains on with what was found", min(max(job.step, 0), self._steps))
        return super().should_stop()


class StudyProgress(ProgressBar):
    """A bar of trials with the current configuration and the best so far."""

    def __init__(self, file: StudyFile) -> None:
        self._file = file
        self._running: Trial | None = None
        self._windows: list[Trial] = []
        super().__init__("starting", file.trials, "trials")

    def update(self, state: Update) -> None:
        """Show what is new."""
        if state.note:
            self.say(f"note: {state.note}")
        if state.trial is not None and state.trial.outcome is None:
            self._running = state.trial
        elif state.trial is not None:
            self._running = self._running if state.controller else None
            self._report_trial(state.trial, state.controller)
        if self._windows and (state.state, state.phase) != ("running", "confirm"):
            self._report_round()
        self.show(self._doing(state), state.trials_done)

    def _report_trial(self, trial: Trial, controller: str) -> None:
        if trial.round is None or trial.value is None:
            self.say(self._line(trial, controller))
        else:
            self._window(trial)

    def _window(self, trial: Trial) -> None:
        """Windows are short: a line for each round, once the next one begins."""
        if self._windows and self._windows[-1].round != trial.round:
            self._report_round()
        self._windows.append(trial)

    def _report_round(self) -> None:
        aim, first = self._file.aim, self._windows[0]
        values = ", ".join(f"trial {window.confirms} {aim.words(window.value)}" for window in self._windows)
        self.say(f"measured again, round {(first.round or 0) + 1}: {values}")
        self._windows = []

    def _line(self, trial: Trial, controller: str) -> str:
        source = f"{trial.source}, {controller}" if controller else trial.source
        text = f"trial {trial.number} ({source}): {self._file.search_space.label(trial.config)}"
        if trial.value is None:
            return f"{text}: {words.ending_words(trial.outcome)}" + (
                f", {trial.reason}" if trial.reason else ""
            )
        aim = self._file.aim
        bounds = words.interval_ends(*aim.bounds(trial.low, trial.high))
        measured = aim.words(trial.value) + (f" ({bounds})" if bounds else "")
        return f"{text}: {measured}" + _ending(trial)

    def _doing(self, state: Update) -> str:
        if state.state != "running":
            return words.ending_words(state.state)
        now = self._file.search_space.label(self._running.config) if self._running else state.phase
        aim = self._file.aim
        best = f"best {aim.words(state.best.value)}; " if state.best else ""
        others = len(state.running) - (self._running is not None)
        return f"{best}{now}" + (f"; {others} more elsewhere" if others > 0 else "")


def _ending(trial: Trial) -> str:
    """How a trial with a value ended, unless that is as usual: that it was pruned says that it stopped early."""
    ending = "" if trial.outcome == "completed" else f", {words.ending_words(trial.outcome)}"
    if trial.outcome == "pruned" and trial.reason.startswith(EARLY):
        return f"{ending}: {trial.reason.removeprefix(EARLY)}"
    return ending + (f"; {trial.reason}" if trial.reason else "")
