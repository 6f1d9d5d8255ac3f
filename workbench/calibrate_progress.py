"""A progress bar for a calibration; silent where nobody watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.output import progress_console, say

if TYPE_CHECKING:
    from engine.launch.measure.calibrate import Progress as Measured
    from tuning.execution.signals import Interruption

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
