"""Time in which a GPU ran nothing although its rank was past its data: kernels were launched too slowly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from profilers.findings.observed import Observed
from profilers.rank_gpus import GpuReadings

#: The driver's utilization is a mean over up to a second; fewer readings say little about a run.
LEAST_READINGS = 10


class Idle(NamedTuple):
    """A share of the step, and the rank whose GPU it is."""

    fraction: float
    rank: int


def most_idle(seen: Observed, gpus: Sequence[GpuReadings]) -> Idle | None:
    """The rank whose GPU ran no kernel for the largest share of the step beside waiting for data.

    Collectives and messages are kernels, too. None without enough readings during the measured steps.
    """
    waiting = dict(zip(seen.ranks, seen.typical("data").tolist(), strict=True))
    found = []
    for one in gpus:
        known = one.table.column("utilization_fraction")[one.within(*seen.span)].compressed()
        for rank in one.ranks if len(known) >= LEAST_READINGS else ():
            data = waiting.get(rank, 0.0) / seen.step_seconds
            found.append(Idle(max(0.0, 1.0 - float(known.mean()) - data), rank))
    return max(found, default=None)
