"""The step records of all ranks side by side (one row a rank, one column a step), and where their time goes. Pure.

Phases of the slowest rank, skew between ranks, and gaps in which no named phase ran, the longest first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from profilers.model.rows import GapRow
from profilers.records.schema import PHASES
from profilers.records.table import Column, Table

PHASE_FIELDS = tuple(f"{phase}_seconds" for phase in PHASES)
_FIELDS = ("measured", "start_unix", "step_seconds", "between_seconds", "cpu_seconds", *PHASE_FIELDS, "loss",
           "gradient_norm")  # fmt: skip


@dataclass(frozen=True, slots=True)
class JoinedSteps:
    """``values[field]`` has shape (ranks, steps) and is masked where a rank did not record a step."""

    ranks: list[int]
    steps: np.ndarray[Any, np.dtype[np.int64]]
    values: dict[str, Column]

    def measured(self) -> JoinedSteps:
        """Only measured steps, and of those only the ones that no rank is missing from.

        The last step of a killed run is there for some ranks only; its slowest rank is not known.
        """
        present = self.values["measured"].count(axis=0)
        complete = present == present.max(initial=0)
        wanted = complete & np.ma.filled(self.values["measured"], 0).any(axis=0)
        return self.chosen(wanted)

    def detailed(self) -> JoinedSteps:
        """Only steps whose phases every rank recorded."""
        wanted = ~np.ma.getmaskarray(self.values[PHASE_FIELDS[0]]).any(axis=0)
        return self.chosen(wanted)

    def between(self, first: int | None, end: int | None) -> JoinedSteps:
        """The steps from ``first`` on that come before ``end``; None for no bound."""
        start = 0 if first is None else int(np.searchsorted(self.steps, first))
        stop = len(self.steps) if end is None else int(np.searchsorted(self.steps, end))
        return self.chosen(slice(start, stop))

    @property
    def span(self) -> tuple[float, float]:
        """Wall-clock times of the first step's start and the last one's end."""
        starts = self.values["start_unix"]
        return float(starts.min()), float((starts + self.values["step_seconds"]).max())

    def chosen(self, wanted: Any) -> JoinedSteps:
        """The chosen steps: a mask or a slice of them."""
        columns = {name: values[:, wanted] for name, values in self.values.items()}
        return JoinedSteps(self.ranks, self.steps[wanted], columns)


def join_steps(tables: dict[int, Table]) -> JoinedSteps:
    """Joins the ``step`` tables of some ranks. If a rank recorded a step twice, the later record counts."""
    tables = {rank: table for rank, table in sorted(tables.items()) if len(table)}
    columns = {rank: np.asarray(table.column("step")) for rank, table in tables.items()}
    steps = np.unique(np.concatenate([*columns.values(), np.empty(0, np.int64)]).astype(np.int64))
    places = {rank: np.searchsorted(steps, column) for rank, column in columns.items()}
    values = {name: _joined(name, tables, places, len(steps)) for name in _FIELDS}
    return JoinedSteps(list(tables), steps, values)


def _joined(
    name: str, tables: dict[int, Table], places: dict[int, np.ndarray[Any, Any]], steps: int
) -> Column:
    joined: Column = np.ma.MaskedArray(np.zeros((len(tables), steps)), mask=True)
    for row, (rank, table) in enumerate(tables.items()):
        joined[row, places[rank]] = table.column(name)
    return joined


def slowest_seconds(measured: JoinedSteps) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The time of each step: that of the rank with the longest one."""
    return np.asarray(measured.values["step_seconds"].max(axis=0).filled(0.0))


def mean_phases(measured: JoinedSteps) -> dict[str, float]:
    """Seconds in each phase, means over ranks and steps."""
    return {name: float(measured.values[f"{name}_seconds"].mean()) for name in PHASES}


#: Phases in which a rank does its own work.
WORK = ("forward", "backward", "optimizer")


class Skew(NamedTuple):
    """The rank with most work of its own: its row, and the seconds of a mean step that it works longer than the rank
    with the least. In ``share`` of the steps it is the busiest.
    """

    row: int
    seconds: float
    share: float


def work_seconds(measured: JoinedSteps) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What ranks compute in each step: [ranks, steps].

    Ranks that wait for each other end a step together, so skew between them is looked for in this.
    """
    return np.asarray(sum(measured.values[f"{phase}_seconds"].filled(0.0) for phase in WORK), dtype=float)


def rank_skew(measured: JoinedSteps) -> Skew:
    """The busiest rank by its mean over steps."""
    work = work_seconds(measured)
    means = work.mean(axis=1)
    row = int(means.argmax())
    return Skew(row, float(means.max() - means.min()), float((work.argmax(axis=0) == row).mean()))


#: Rows of a summary.
MOST_ROWS = 5


class _Gap(NamedTuple):
    seconds: float
    rank: int
    step: int


def gap_rows(tables: Mapping[int, Table], steps: np.ndarray[Any, np.dtype[np.int64]]) -> list[GapRow]:
    """Gaps by what was before and after them, those that cost most first; ``tables`` hold the ranks' spans.

    Of the ``steps`` whose spans were kept; seconds are means over those and the ranks.
    """
    gaps: dict[tuple[str | None, str | None], list[_Gap]] = defaultdict(list)
    rank_steps = 0
    for rank, table in tables.items():
        found = np.ma.getdata(table.column("step"))
        wanted = np.isin(found, steps)
        rank_steps += len(np.unique(found[wanted]))
        phases = table.column("phase")[wanted].tolist()
        seconds = table.column("seconds")[wanted].filled(0.0).tolist()
        _add(gaps, rank, found[wanted].tolist(), phases, seconds)
    rows = [_row(*key, found, rank_steps) for key, found in gaps.items()]
    return sorted(rows, key=lambda row: -row.seconds)[:MOST_ROWS]


def _add(
    gaps: dict[tuple[str | None, str | None], list[_Gap]],
    rank: int,
    steps: list[int],
    phases: list[str],
    seconds: list[float],
) -> None:
    last = len(steps) - 1
    for place, phase in enumerate(phases):
        if phase == "other":
            step = steps[place]
            after = phases[place - 1] if place and steps[place - 1] == step else None
            before = phases[place + 1] if place < last and steps[place + 1] == step else None
            gaps[after, before].append(_Gap(seconds[place], rank, step))


def _row(after: str | None, before: str | None, found: list[_Gap], rank_steps: int) -> GapRow:
    longest = max(found)
    whole = sum(gap.seconds for gap in found)
    return GapRow(after, before, whole / rank_steps, longest.seconds, longest.rank, longest.step)
