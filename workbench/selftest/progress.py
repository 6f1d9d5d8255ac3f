"""A line for each check as it ends, on stderr; where somebody watches, also which one runs and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.output import progress_console, say

if TYPE_CHECKING:
    from tuning.execution.signals import Interruption
    from workbench.selftest.registry import Check
    from workbench.selftest.results import Row

WORDS = {"pass": "pass", "fail": "FAIL", "not_possible": "not possible"}
_STOPPING = "stopping; what was found is kept"


class Progress:
    """Tells, and passes Ctrl-C on."""

    def __init__(self, interruption: Interruption, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = progress_console()
        columns = (
            TextColumn("{task.description:<28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._interruption, self._told = interruption, False
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task: Any = self._bar.add_task("starting", total=total)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def tell(self, check: Check, row: Row | None) -> None:
        """A check begins, or ended with this row."""
        self._bar.update(self._task, description=check.title)
        if row is not None:
            self._bar.advance(self._task)
            line = f"{WORDS[row.outcome]:<12}  {row.name:<15} {row.seconds:6.1f} s  {row.reason}"
            if self._bar.disable:
                say(line)
            else:
                self._bar.console.print(line, markup=False, soft_wrap=True)

    def should_stop(self) -> bool:
        """Whether somebody pressed Ctrl-C."""
        if self._interruption.seen and not self._told:
            self._told = True
            say(_STOPPING)
        return bool(self._interruption.seen)
