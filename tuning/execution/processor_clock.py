"""The clock of this machine's processors during a trial, read now and then."""

from __future__ import annotations

import time

import psutil

#: Reading asks every processor, so rarely.
EVERY_SECONDS = 5.0
_ERRORS = (psutil.Error, OSError, AttributeError, NotImplementedError, RuntimeError, ValueError)


class ProcessorClock:
    """The mean over all processors and looks; a machine that does not tell has none."""

    def __init__(self) -> None:
        self._looked = float("-inf")
        self._sum, self._count = 0.0, 0

    def look(self) -> None:
        """Read, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._looked < EVERY_SECONDS:
            return
        self._looked = now
        mhz = _mhz()
        if mhz:
            self._sum, self._count = self._sum + mhz, self._count + 1

    def readings(self) -> dict[str, float]:
        """``processor_mhz``, if it is known."""
        return {"processor_mhz": self._sum / self._count} if self._count else {}


def _mhz() -> float | None:
    try:
        frequency = psutil.cpu_freq()
    except _ERRORS:
        return None
    return None if frequency is None else float(frequency.current)
