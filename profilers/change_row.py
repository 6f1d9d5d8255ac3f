"""One value of the configuration that was changed while a run went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One value of the configuration that was changed while the run went: ``new`` holds from ``step`` on.

    The seconds are medians of the measured steps back to the change before this one, and on to the next; changes at
    one step share them.
    """

    step: int
    key: str
    old: Any
    new: Any
    by: str = ""
    time_unix: float = 0.0
    #: The command that asked for it.
    id: str = ""
    seconds_before: float | None = None
    seconds_after: float | None = None
