"""The steps of the runs that a live study tuned, as one run: what counts in the end, what was lost, what was turned."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engine.config import run_config
from engine.config.errors import InputError
from engine.run import run_folder
from profilers.analysis.events import change_rows
from profilers.analysis.rounds import wall_seconds
from profilers.analysis.statistics import mean_interval
from profilers.analysis.steps import JoinedSteps, join_steps
from profilers.records.reader import RunRecords
from profilers.records.schema import UNDONE_EVENT

#: Who turned a run that has other values since it began again.
AGAIN = "started again"
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Wall seconds of each step that counts in the end; and what was ``lost`` before it was done: steps from it on that
    were ``undone``, which is a part of it, or that a run did which died.
    """

    steps: np.ndarray[Any, np.dtype[np.int64]]
    seconds: Floats
    lost: Floats
    undone: Floats | None = None

    def drop_before(self, first: int) -> Timeline:
        """Without the steps before: they were done before anything was tuned."""
        wanted = self.steps >= first
        undone_seconds = None if self.undone is None else self.undone[wanted]
        return Timeline(self.steps[wanted], self.seconds[wanted], self.lost[wanted], undone_seconds)

    @property
    def undone_seconds(self) -> float:
        """Of all that was undone, with what ranks waited there."""
        return 0.0 if self.undone is None else float(self.undone.sum())


@dataclass(frozen=True, slots=True)
class ValueChange:
    """Values that hold from a ``step`` on to before ``end``, who turned them, and the seconds that the baseline would
    have taken more for these steps, with the ends of their 95 % interval where there are enough steps for one. What was
    undone before belongs to no turn.
    """

    step: int
    end: int
    values: dict[str, Any]
    by: str
    saved_seconds: float | None
    saved_low: float | None = None
    saved_high: float | None = None


def timeline_of(folders: Sequence[Path]) -> Timeline:
    seconds_by_step: dict[int, float] = {}
    lost_by_step, undone_by_step = defaultdict[int, float](float), defaultdict[int, float](float)
    for folder in folders:
        records = RunRecords(folder / run_folder.RECORDS)
        tables = {rank: records.table(rank, "step") for rank in records.ranks()}
        aligned = _whole(join_steps(tables, ("step_seconds", "between_seconds")))
        if not len(aligned.steps):
            continue
        first = int(aligned.steps[0])
        lost_by_step[first] += sum(seconds for step, seconds in seconds_by_step.items() if step >= first)
        for event in records.events(0):
            if event.kind == UNDONE_EVENT:
                undone_by_step[int(event.data["step"])] += float(event.data["seconds"])
        seconds_by_step = {step: seconds for step, seconds in seconds_by_step.items() if step < first}
        seconds_by_step |= dict(zip(aligned.steps.tolist(), wall_seconds(aligned).tolist(), strict=True))
    steps, seconds = (
        np.array(list(seconds_by_step), np.int64),
        np.array(list(seconds_by_step.values()), float),
    )
    lost_seconds, undone_seconds = (
        np.array([by_step.get(step, 0.0) for step in seconds_by_step], float)
        for by_step in (lost_by_step, undone_by_step)
    )
    return Timeline(steps, seconds, lost_seconds + undone_seconds, undone_seconds)


def _whole(steps: JoinedSteps) -> JoinedSteps:
    """The steps that every rank recorded."""
    return steps.select(~np.ma.getmaskarray(steps.values["step_seconds"]).any(axis=0))


def changes_of(
    folders: Sequence[Path], keys: Collection[str], timeline: Timeline, saved: Floats | None
) -> list[ValueChange]:
    """Of all runs, without what a run did twice: the last one that did a step counts. One that was started again has
    its own values of these ``keys`` from its first step on.
    """
    values_by_step: dict[int, list[_ManualValue]] = {}
    for folder in folders:
        records = RunRecords(folder / run_folder.RECORDS)
        rows, first = change_rows(records), _first_step(records)
        values_by_step = {
            step: manual_values for step, manual_values in values_by_step.items() if step < first
        }
        if folder != folders[0] and first < math.inf:
            values_by_step[int(first)] = [
                _ManualValue(key, value, AGAIN) for key, value in _began_with(folder, keys).items()
            ]
        for row in rows:
            values_by_step.setdefault(row.step, []).append(_ManualValue(row.key, row.new, str(row.by)))
    steps = sorted(values_by_step)
    ends = [*steps[1:], int(timeline.steps[-1]) + 1 if len(timeline.steps) else 0]
    changes = []
    for step, end in zip(steps, ends, strict=False):
        inside = (timeline.steps >= step) & (timeline.steps < end)
        values = {manual_value.key: manual_value.value for manual_value in values_by_step[step]}
        changes.append(ValueChange(step, end, values, values_by_step[step][-1].by, *_sum(saved, inside)))
    return changes


#: Neighbours are put together until there are so many numbers at the most.
_GROUPS = 400


def _sum(
    saved: Floats | None, inside: np.ndarray[Any, Any]
) -> tuple[float | None, float | None, float | None]:
    """Of some steps, with the ends of its 95 % interval."""
    if saved is None or not inside.any():
        return None, None, None
    group_saved = saved[inside]
    groups = np.array_split(group_saved, min(len(group_saved), _GROUPS))
    interval = mean_interval([float(group.mean()) for group in groups])
    ends = [None if end is None else end * len(group_saved) for end in (interval.low, interval.high)]
    return float(group_saved.sum()), ends[0], ends[1]


class _ManualValue(NamedTuple):
    key: str
    value: Any
    by: str


def _began_with(run: Path, keys: Collection[str]) -> dict[str, Any]:
    place = next(
        (run / name for name in (run_folder.STARTED, run_folder.CONFIG) if (run / name).is_file()),
        None,
    )
    if place is None:
        return {}
    try:
        flat = run_config.load(place).flat()
    except InputError:
        return {}
    return {key: flat[key] for key in keys if key in flat}


def _first_step(records: RunRecords) -> float:
    """Of a run; beyond all steps where it recorded none."""
    if 0 not in records.ranks():
        return math.inf
    steps = records.table(0, "step").column("step")
    return int(steps[0]) if len(steps) else math.inf
