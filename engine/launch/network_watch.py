"""Sees that the network between the ranks of a run is down: over TCP they would only wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from engine.outcome import Ending, RunOutcome

_LOOK_SECONDS = 0.5
#: A link that comes back sooner costs time, not the run: TCP sends again what was lost.
_PATIENCE_SECONDS = 2.0


class NetworkWatch:
    """Asks ``broken`` now and then, which tells what is down in one line, or None."""

    def __init__(self, broken: Callable[[], str | None]) -> None:
        self._broken = broken
        self._looked_at = 0.0
        self._since: float | None = None

    def lost(self) -> RunOutcome | None:
        """An ending once something has been down for 2 seconds."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return None
        self._looked_at, line = now, self._broken()
        if line is None:
            self._since = None
            return None
        self._since = now if self._since is None else self._since
        return RunOutcome(Ending.COMM_ERROR, line) if now - self._since >= _PATIENCE_SECONDS else None

    def explained(self, outcome: RunOutcome) -> RunOutcome:
        """The same ending; where ranks lost each other, with what is down as the reason."""
        line = self._broken() if outcome.ending is Ending.COMM_ERROR else None
        return outcome if line is None else replace(outcome, reason=line)
