"""What the rules read: every rank's seconds, and what each operation made ranks wait for; numbers as words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from profilers.analysis.rounds import wall_seconds
from profilers.analysis.steps import JoinedSteps
from profilers.model.verdict import Setting
from profilers.records.operations import POINT_TO_POINT, operation_of
from profilers.records.table import Table

#: The operation of what no recorded call explains.
UNKNOWN = "communication"

Numbers = np.ndarray[Any, np.dtype[np.float64]]


def seconds(value: float) -> str:
    """A duration of a step's size: "12.3 ms", "4.50 s"."""
    return f"{value * 1e3:,.1f} ms" if value < 1 else f"{value:,.2f} s"


def size(value: float) -> str:
    """Bytes: "320 bytes", "3.2 MiB", "1.50 GiB"."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= scale:
            return f"{value / scale:,.1f} {unit}"
    return f"{value:,.0f} bytes"


def percent(fraction: float) -> str:
    """A fraction as percent, as everywhere in the workbench."""
    return f"{fraction * 100:.0f} %" if fraction >= 0.1 or not fraction else f"{fraction * 100:.1f} %"


def rate(bytes_per_second: float) -> str:
    """A bandwidth: "12.4 MB/s", "45.12 GB/s"."""
    large = bytes_per_second >= 1e9
    return f"{bytes_per_second / 1e9:,.2f} GB/s" if large else f"{bytes_per_second / 1e6:,.1f} MB/s"


@dataclass(frozen=True, slots=True)
class Exposure:
    """Seconds of a step that ranks waited for an operation on an axis: means over steps and groups of ranks.

    ``late_seconds`` is what waiting for other ranks adds. Both ends of a message are one operation.
    """

    axis: str
    operation: str
    seconds: float
    late_seconds: float


@dataclass(frozen=True, slots=True)
class RuleInputs:
    """A run's measured steps; ``hosts`` names each rank's host where the rank recorded it. ``micro_batches`` are those
    of a rank's step, where they are of several tasks.
    """

    measured: JoinedSteps
    setting: Setting
    exposures: list[Exposure]
    hosts: dict[int, str]
    micro_batches: Mapping[int, int] = field(default_factory=dict)

    @property
    def ranks(self) -> list[int]:
        """Numbers of the ranks, in the order of the rows below."""
        return self.measured.ranks

    @property
    def step_seconds(self) -> float:
        """The mean step, what comes between two steps included."""
        return float(wall_seconds(self.measured).mean())

    def seconds(self, *phases: str) -> Numbers:
        """Seconds in some phases together: [ranks, steps]."""
        total = sum(self.measured.values[f"{phase}_seconds"].filled(0.0) for phase in phases)
        return np.asarray(total, dtype=float)

    def mean(self, *phases: str) -> Numbers:
        """The same, the mean over steps: [ranks]."""
        return np.asarray(self.seconds(*phases).mean(axis=1))

    def place(self, rank: int) -> str:
        """A rank and its host, in words."""
        host = self.hosts.get(rank)
        return f"rank {rank}" + (f" on {host}" if host else "")


def exposures(
    tables: Sequence[Table], measured: JoinedSteps, groups: Mapping[str, list[list[int]]]
) -> list[Exposure]:
    """One for each axis and operation; ``tables`` are the calls of each of ``measured.ranks``.

    The rank that comes last to a collective waits for nothing but the collective. So its own cost is the shortest wait
    in a group; what the others wait longer is another rank's delay. Waits that overlap are shared out: together they
    are as long as the main thread really stood.
    """
    waited = measured.values["communication_exposed_seconds"].filled(0.0)
    by_key: dict[tuple[str, str], Numbers] = defaultdict(lambda: np.zeros_like(waited))
    for row, table in enumerate(tables):
        if len(table):
            _add_waits(by_key, row, table, measured.steps)
    total = sum(by_key.values(), np.zeros_like(waited))
    scale = np.divide(waited, total, out=np.ones_like(total), where=total > waited)
    by_key = {key: seconds * scale for key, seconds in sorted(by_key.items())}
    by_key["", UNKNOWN] = np.maximum(waited - total, 0.0)

    rows = {rank: row for row, rank in enumerate(measured.ranks)}
    exposed = []
    for (axis, operation), seconds in by_key.items():
        members = [
            [rows[rank] for rank in group if rank in rows] for group in groups.get(axis, [measured.ranks])
        ]
        # Stages of a pipeline do not meet: each has messages of its own.
        alone = (axis, operation) == ("pp", POINT_TO_POINT)
        waits = [
            seconds[group].mean(axis=0) if alone else seconds[group].min(axis=0) for group in members if group
        ]
        cost = float(np.mean(waits))
        exposed.append(Exposure(axis, operation, cost, max(0.0, float(seconds.mean()) - cost)))
    return exposed


def _add_waits(
    by_key: dict[tuple[str, str], Numbers], row: int, table: Table, steps: np.ndarray[Any, Any]
) -> None:
    """Adds one rank's exposed seconds by axis and operation; waits that overlap count once for each call."""
    (axes, axis_names), (codes, names) = table.codes("axis"), table.codes("operation")
    step, exposed = table.column("step"), table.column("exposed_seconds")
    place = np.searchsorted(steps, step.filled(-1)).clip(0, len(steps) - 1)
    usable = (steps[place] == step.filled(-1)) & ~np.ma.getmaskarray(exposed)
    for axis, axis_name in axis_names.items():
        of_axis = usable & (axes == axis).filled(False)
        for code, name in names.items():
            chosen = of_axis & (codes == code).filled(False)
            if chosen.any():
                operation = operation_of(name)
                key = axis_name, (operation and operation.verdict) or name
                by_key[key][row] += np.bincount(place[chosen], exposed[chosen].filled(0.0), len(steps))
