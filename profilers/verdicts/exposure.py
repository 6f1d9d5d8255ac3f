"""Seconds that ranks waited for each operation itself, apart from those that they waited for a late rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from profilers.analysis.steps import JoinedSteps
from profilers.records.table import Table

#: Both ends of a message.
POINT_TO_POINT = "point_to_point"
_MESSAGES = {"send": POINT_TO_POINT, "recv": POINT_TO_POINT}
#: Of what no recorded call explains.
UNKNOWN = "communication"

_Numbers = np.ndarray[Any, np.dtype[np.float64]]
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Exposure:
    """Seconds a step: the median over steps. ``late_seconds`` is what waiting for other ranks comes to on top."""

    axis: str
    operation: str
    seconds: float
    late_seconds: float


def exposures(
    tables: Sequence[Table], measured: JoinedSteps, groups: Mapping[str, list[list[int]]]
) -> list[Exposure]:
    """One for each axis and operation; ``tables`` are the calls of each of ``measured.ranks``.

    The rank that comes last to a collective waits for nothing but the collective. So its own cost is the shortest wait
    in a group; what the others wait longer is somebody's delay. Waits that overlap are shared out: together they are
    as long as the main thread really stood.
    """
    waited = measured.values["communication_exposed_seconds"].filled(0.0)
    by_key = _by_key(tables, measured)
    total = sum(by_key.values(), np.zeros_like(waited))
    scale = np.divide(waited, total, out=np.ones_like(total), where=total > waited)
    found = [
        _exposure(key, seconds * scale, measured.ranks, groups) for key, seconds in sorted(by_key.items())
    ]
    rest = np.maximum(waited - total, 0.0)
    return [*found, _exposure(("", UNKNOWN), rest, measured.ranks, {})]


def _by_key(tables: Sequence[Table], measured: JoinedSteps) -> dict[Key, _Numbers]:
    """Axis and operation -> exposed seconds [ranks, steps], waits that overlap being counted once for each call."""
    shape = len(measured.ranks), len(measured.steps)
    found: dict[Key, _Numbers] = defaultdict(lambda: np.zeros(shape))
    for row, table in enumerate(tables):
        if len(table):
            _add(found, row, table, measured.steps)
    return found


def _add(found: dict[Key, _Numbers], row: int, table: Table, steps: np.ndarray[Any, Any]) -> None:
    (axes, axis_names), (operations, names) = table.codes("axis"), table.codes("operation")
    step, seconds = table.column("step"), table.column("exposed_seconds")
    place = np.searchsorted(steps, step.filled(-1)).clip(0, len(steps) - 1)
    known = (steps[place] == step.filled(-1)) & ~np.ma.getmaskarray(seconds)
    for axis, axis_name in axis_names.items():
        of_axis = known & (axes == axis).filled(False)
        for operation, name in names.items():
            chosen = of_axis & (operations == operation).filled(False)
            if chosen.any():
                sums = np.bincount(place[chosen], seconds[chosen].filled(0.0), len(steps))
                found[axis_name, _MESSAGES.get(name, name)][row] += sums


def _exposure(
    key: Key, seconds: _Numbers, ranks: list[int], groups: Mapping[str, list[list[int]]]
) -> Exposure:
    axis, operation = key
    rows = {rank: row for row, rank in enumerate(ranks)}
    members = [[rows[rank] for rank in group if rank in rows] for group in groups.get(axis, [ranks])]
    # Stages of a pipeline do not meet: each has messages of its own.
    shortest = [
        seconds[group].mean(axis=0) if key == ("pp", POINT_TO_POINT) else seconds[group].min(axis=0)
        for group in members
        if group
    ]
    own = float(np.median(_mean(shortest)))
    return Exposure(axis, operation, own, max(0.0, float(np.median(seconds.mean(axis=0))) - own))


def _mean(rows: Iterable[_Numbers]) -> _Numbers:
    return np.asarray(np.mean(list(rows), axis=0))
