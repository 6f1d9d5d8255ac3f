"""A progress bar for one run, fed by the run's own progress page; silent where nobody watches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.run import progress as pages
from workbench.output import say
from workbench.progress_bar import WatchedBar

if TYPE_CHECKING:
    from rich.progress import Progress

    from tuning.execution.signals import Interruption

_STOPPING = "stopping after this step; Ctrl-C again kills the run"


class RunProgress(WatchedBar):
    """Draws whenever the launcher asks whether to stop, ten times a second."""

    def __init__(self, steps: int, interruption: Interruption) -> None:
        self.folder: Path | None = None
        self._steps, self._interruption = steps, interruption
        self._told = False
        super().__init__(_bar, "starting ranks", steps)

    def follow(self, folder: Path) -> None:
        """From now on, show this run."""
        self.folder = folder

    def should_stop(self) -> bool:
        """Whether somebody pressed Ctrl-C; shows on the way where the slowest rank stands."""
        self._draw()
        if self._interruption.seen and not self._told:
            self._told = True
            say(_STOPPING)
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


def _bar(console: Any) -> Progress:
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
