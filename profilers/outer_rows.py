"""What a run's summary says of its outer loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OuterRow:
    """The averages that rank 0 took over from other replicas, ``averages`` of them in ``rounds`` rounds.

    Staleness is in rounds: 0 for an average of the running round, 1 for one of the round before. ``delay_steps`` is
    the mean number of steps for which an average was under way, ``wait_seconds`` the median time waited for one.
    """

    averages: int
    rounds: int
    least_staleness: int
    most_staleness: int
    delay_steps: float
    wait_seconds: float
