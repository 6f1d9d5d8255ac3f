"""How far one host's clock is from another's, from messages between the two; pure.

Source: the on-wire protocol and the clock filter of NTP (RFC 5905, sections 8 and 10).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

_Floats = np.ndarray[Any, np.dtype[np.float64]]
#: A clock may drift by so much a second (RFC 5905, PHI).
DRIFT = 15e-6


class Exchange(NamedTuple):
    """One question and its answer: ``asked_unix`` and ``heard_unix`` by the asker's clock, ``received_unix`` and
    ``answered_unix`` by the other's; unix seconds.
    """

    asked_unix: float
    received_unix: float
    answered_unix: float
    heard_unix: float

    @property
    def round_trip_seconds(self) -> float:
        """Time on the way, without the other's own."""
        return max(0.0, (self.heard_unix - self.asked_unix) - (self.answered_unix - self.received_unix))

    @property
    def offset_seconds(self) -> float:
        """The asker's clock minus the other's, if both ways take as long."""
        return ((self.asked_unix - self.received_unix) + (self.heard_unix - self.answered_unix)) / 2


class Offset(NamedTuple):
    """A clock minus the reference's at ``time_unix``, right within ``error_seconds``."""

    time_unix: float
    offset_seconds: float
    error_seconds: float


def estimate(exchanges: Iterable[Exchange]) -> Offset:
    """From the exchange with the shortest round trip; the error is half of that, for however its two ways differ.

    ValueError without exchanges.
    """
    best = min(exchanges, key=lambda exchange: exchange.round_trip_seconds, default=None)
    if best is None:
        raise ValueError("no exchange of messages to estimate an offset from")
    return Offset(best.heard_unix, best.offset_seconds, best.round_trip_seconds / 2)


class ClockOffset:
    """One clock's offset over a run, from estimates in the order of time; none means the reference's own clock."""

    def __init__(self, estimates: Sequence[Offset] = ()) -> None:
        self._estimates = tuple(sorted(estimates))

    def align(self, times_unix: _Floats) -> _Floats:
        """Times of this clock by the reference's."""
        if not self._estimates:
            return times_unix
        offsets = np.array(self._estimates)
        return np.asarray(times_unix - np.interp(times_unix, offsets[:, 0], offsets[:, 1]))

    def estimate(self, time_unix: float) -> Offset:
        """Between two estimates on the line through them; before the first and after the last the error grows by
        ``DRIFT``.
        """
        estimates = self._estimates
        if not estimates:
            return Offset(time_unix, 0.0, 0.0)
        later = next(
            (place for place, offset in enumerate(estimates) if offset.time_unix >= time_unix), len(estimates)
        )
        if 0 < later < len(estimates):
            return _interpolate(estimates[later - 1], estimates[later], time_unix)
        nearest = estimates[0] if later == 0 else estimates[-1]
        away = abs(time_unix - nearest.time_unix)
        drift = DRIFT if nearest.error_seconds > 0 else 0.0  # no error: it is the same clock
        return Offset(time_unix, nearest.offset_seconds, nearest.error_seconds + drift * away)


def _interpolate(earlier: Offset, later: Offset, time_unix: float) -> Offset:
    share = (time_unix - earlier.time_unix) / (later.time_unix - earlier.time_unix)
    offset = earlier.offset_seconds + share * (later.offset_seconds - earlier.offset_seconds)
    return Offset(
        time_unix, offset, earlier.error_seconds + share * (later.error_seconds - earlier.error_seconds)
    )
