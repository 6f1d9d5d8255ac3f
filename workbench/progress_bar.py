"""A bar in the terminal, where somebody watches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from workbench.output import progress_console

if TYPE_CHECKING:
    from rich.progress import Progress


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
