"""Time in which a GPU ran nothing although its rank was past its data: kernels were launched too slowly."""

from __future__ import annotations

from typing import NamedTuple

from profilers.findings.observed import Observed
from profilers.table import Table

#: The driver's utilization is a mean over up to a second; fewer readings say little about a run.
LEAST_READINGS = 10


class Idle(NamedTuple):
    """A share of the step, and the rank whose GPU it is."""

    fraction: float
    rank: int


def most_idle(seen: Observed, gpus: Table) -> Idle | None:
    """The rank whose GPU ran no kernel for the largest share of the step beside waiting for data.

    Collectives and messages are kernels, too. None without enough readings during the measured steps.
    """
    start, end = seen.span
    times, busy = gpus.column("time_unix"), gpus.column("utilization_fraction")
    inside = (times >= start).filled(False) & (times <= end).filled(False)
    found = []
    for rank, data in zip(seen.ranks, seen.typical("data"), strict=True):
        known = busy[inside & (gpus.column("gpu") == rank).filled(False)].compressed()
        if len(known) >= LEAST_READINGS:
            found.append(Idle(max(0.0, 1.0 - float(known.mean()) - float(data) / seen.step_seconds), rank))
    return max(found, default=None)
