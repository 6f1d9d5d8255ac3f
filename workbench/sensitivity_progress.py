"""How far fANOVA or SHAP is: a bar in a terminal, elsewhere a plain line now and then on stderr."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tuning.sensitivity.job import NAMES, Method
from workbench.output import say
from workbench.progress_bar import WatchedBar

if TYPE_CHECKING:
    from rich.progress import Progress

#: Without a terminal, lines are this far apart.
_APART_SECONDS = 1.0


class SensitivityProgress(WatchedBar):
    """``update`` takes the part that is done, 0 to 1, and what is being done."""

    def __init__(self, method: Method) -> None:
        self._name = NAMES[method]
        self._began, self._said = time.monotonic(), 0.0
        super().__init__(_bar, self._name, 1.0)

    def update(self, part: float, doing: str) -> None:
        """Show it."""
        if self._bar:
            self._bar.update(self._task, completed=part, description=f"{self._name}: {doing}")
        elif time.monotonic() - self._said >= _APART_SECONDS:
            self._said = time.monotonic()
            say(f"{self._name}: {doing}, {part:.0%} after {self._said - self._began:.0f} s")


def _bar(console: Any) -> Progress:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (BarColumn(20), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(TextColumn("{task.description}", markup=False), *columns, console=console, transient=True)
