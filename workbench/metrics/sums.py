"""What a run's records amount to so far: sums and latest readings, kept up with what was written since."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from profilers.analysis.communication import MESSAGES
from profilers.records.schema import PHASES
from profilers.records.table import Table

#: Upper bounds of the step histogram in seconds; the last bucket has none.
STEP_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
#: Steps that the current rate is taken over.
WINDOW_STEPS = 20
#: Some readings are taken once a second and left out of the records in between.
_HELD_SECONDS = 2.0
_TIMES = ("time_unix", "start_unix")


@dataclass(slots=True)
class StepSums:
    """One rank's steps. ``buckets`` counts steps between two bounds, ``recent`` has seconds of the last ones.

    ``detailed`` counts the steps whose phases were recorded; collectives are of these alone, too.
    """

    buckets: list[int] = field(default_factory=lambda: [0] * (len(STEP_BOUNDS) + 1))
    seconds: float = 0.0
    detailed: int = 0
    cpu_seconds: float = 0.0
    phase_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    recent: dict[int, float] = field(default_factory=dict)
    loss: float | None = None
    gradient_norm: float | None = None

    def add(self, table: Table) -> None:
        """Counts new steps in."""
        if not len(table):
            return
        seconds = table.column("step_seconds").filled(0.0)
        places = np.bincount(np.searchsorted(STEP_BOUNDS, seconds), minlength=len(self.buckets))
        self.buckets = [before + int(new) for before, new in zip(self.buckets, places, strict=True)]
        self.seconds += float(seconds.sum())
        self.cpu_seconds += float(table.column("cpu_seconds").filled(0.0).sum())
        self.detailed += int(table.column(f"{PHASES[0]}_seconds").count())
        for phase in PHASES:
            self.phase_seconds[phase] += float(table.column(f"{phase}_seconds").filled(0.0).sum())
        self._remember(table.part(max(0, len(table) - WINDOW_STEPS), len(table)))

    def _remember(self, last: Table) -> None:
        steps, seconds = last.column("step").filled(-1).tolist(), last.column("step_seconds").filled(0.0)
        merged = self.recent | dict(zip(steps, seconds.tolist(), strict=True))
        self.recent = {step: merged[step] for step in sorted(merged)[-WINDOW_STEPS:]}
        self.loss = last.column("loss").tolist()[-1]
        self.gradient_norm = last.column("gradient_norm").tolist()[-1]


@dataclass(slots=True)
class CallSums:
    """One rank's collectives of one axis and operation.

    ``seconds`` only of calls whose time is known; None of messages, which have none.
    """

    calls: int = 0
    bytes: int = 0
    seconds: float | None = 0.0
    exposed_seconds: float = 0.0


def add_calls(sums: defaultdict[tuple[str, str], CallSums], table: Table) -> None:
    """Counts new collectives in, by axis and operation."""
    (axes, axis_names), (operations, operation_names) = table.codes("axis"), table.codes("operation")
    columns = {name: table.column(name).filled(0) for name in ("bytes", "seconds", "exposed_seconds")}
    for axis, axis_name in axis_names.items():
        for operation, operation_name in operation_names.items():
            chosen = np.ma.filled((axes == axis) & (operations == operation), False)
            if not (count := int(np.count_nonzero(chosen))):
                continue
            total = sums[axis_name, operation_name]
            total.calls += count
            total.bytes += int(columns["bytes"][chosen].sum())
            seconds = float(columns["seconds"][chosen].sum())
            total.seconds = None if operation_name in MESSAGES else (total.seconds or 0.0) + seconds
            total.exposed_seconds += float(columns["exposed_seconds"][chosen].sum())


#: Value of the key -> field -> when it was read, in seconds of the wall clock, and the number.
Readings = dict[str, dict[str, tuple[float, float]]]


def latest(table: Table, key: str | None, before: Readings) -> Readings:
    """The last numbers of each value of ``key``; ``before`` is what earlier records told.

    Without a key all records are of one thing. What was not available for two seconds up to the last record, whatever
    that one is of, is left out: a GPU that was lost has no readings. So are times, steps, names and the key.
    """
    if not len(table):
        return before
    left_out = (*_TIMES, "step", key)
    names = [each.name for each in fields(table.record_class) if each.name not in left_out]
    columns = {name: table.column(name) for name in names}
    numbers = {name: column for name, column in columns.items() if column.dtype.kind in "iuf"}
    times = table.column("time_unix").filled(0.0)
    since = times.max() - _HELD_SECONDS
    found = {
        of: {name: read for name, read in values.items() if read[0] >= since} for of, values in before.items()
    }
    for of, rows in _rows(table, key).items():
        recent, kept = rows[times[rows] >= since], found.setdefault(of, {})
        for name, column in numbers.items():
            known = recent[~np.ma.getmaskarray(column)[recent]]
            if len(known):
                kept[name] = float(times[known[-1]]), float(column[known[-1]])
    return {of: kept for of, kept in found.items() if kept}


def _rows(table: Table, key: str | None) -> dict[str, np.ndarray[Any, np.dtype[np.intp]]]:
    """Places of the records of each value of ``key``."""
    if key is None:
        return {"": np.arange(len(table))}
    keys = table.column(key)
    values = np.unique(keys.compressed()).tolist()
    return {str(of): np.flatnonzero(np.ma.filled(keys == of, False)) for of in values}
