"""The step records of all ranks side by side (one row a rank, one column a step), and where their time goes. Pure.

Phases of the slowest rank, skew between ranks and its kind, and gaps in which no named phase ran, the longest first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from profilers.analysis.statistics import MINIMUM_STEPS, chance, high_outliers
from profilers.model.rows import FIXED, ONE_OFF, ROTATING, GapRow, LateStep, SkewRow
from profilers.records.schema import PHASES
from profilers.records.table import Column, Table

PHASE_FIELDS = tuple(f"{phase}_seconds" for phase in PHASES)
_FIELDS = ("measured", "start_unix", "step_seconds", "between_seconds", "cpu_seconds", *PHASE_FIELDS, "loss",
           "gradient_norm", "tokens")  # fmt: skip


@dataclass(frozen=True, slots=True)
class JoinedSteps:
    """``values[field]`` has shape (ranks, steps) and is masked where a rank did not record a step."""

    ranks: list[int]
    steps: np.ndarray[Any, np.dtype[np.int64]]
    values: dict[str, Column]

    def select_measured(self) -> JoinedSteps:
        """Only measured steps, and of those only the ones that no rank is missing from.

        The last step of a killed run is there for some ranks only; its slowest rank is not known.
        """
        present = self.values["measured"].count(axis=0)
        complete = present == present.max(initial=0)
        wanted = complete & np.ma.filled(self.values["measured"], 0).any(axis=0)
        return self.select(wanted)

    @property
    def left_out(self) -> int:
        """Steps at the start that no rank measured."""
        excluded = np.flatnonzero(np.ma.filled(self.values["measured"], 0).max(axis=0, initial=0))
        return int(excluded[0]) if len(excluded) else len(self.steps)

    def exclude_first(self, steps: int) -> JoinedSteps:
        """The same, with so many steps at the start not measured, whatever ranks left out there."""
        is_measured = self.values["measured"]
        flags = np.ma.getdata(is_measured).copy()
        flags[:, steps : self.left_out], flags[:, :steps] = 1.0, 0.0
        measured: Column = np.ma.MaskedArray(flags, mask=np.ma.getmaskarray(is_measured))
        return JoinedSteps(self.ranks, self.steps, self.values | {"measured": measured})

    def select_detailed(self) -> JoinedSteps:
        """Only steps whose phases every rank recorded."""
        wanted = ~np.ma.getmaskarray(self.values[PHASE_FIELDS[0]]).any(axis=0)
        return self.select(wanted)

    def select_range(self, first: int | None, end: int | None) -> JoinedSteps:
        """The steps from ``first`` on that come before ``end``; None for no bound."""
        start = 0 if first is None else int(np.searchsorted(self.steps, first))
        stop = len(self.steps) if end is None else int(np.searchsorted(self.steps, end))
        return self.select(slice(start, stop))

    @property
    def span(self) -> tuple[float, float]:
        """Wall-clock times of the first step's start and the last one's end."""
        starts = self.values["start_unix"]
        return float(starts.min()), float((starts + self.values["step_seconds"]).max())

    def select(self, wanted: Any) -> JoinedSteps:
        """The chosen steps: a mask or a slice of them."""
        columns = {name: values[:, wanted] for name, values in self.values.items()}
        return JoinedSteps(self.ranks, self.steps[wanted], columns)


def join_steps(tables: dict[int, Table], names: Sequence[str] = _FIELDS) -> JoinedSteps:
    """Joins the ``step`` tables of some ranks: all fields, or those named, for a long run has hundreds of bytes a step.
    If a rank recorded a step twice, the later record counts.
    """
    tables = {rank: table for rank, table in sorted(tables.items()) if len(table)}
    columns = {rank: np.asarray(table.column("step")) for rank, table in tables.items()}
    steps = np.unique(np.concatenate([*columns.values(), np.empty(0, np.int64)]).astype(np.int64))
    places = {rank: np.searchsorted(steps, column) for rank, column in columns.items()}
    values = {name: _join_column(name, tables, places, len(steps)) for name in names}
    return JoinedSteps(list(tables), steps, values)


def _join_column(
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
#: What comes in more of the steps than this is no exception.
_MOST_LATE = 0.1
#: Beside a worst one, an outlier that is less than this part as far above the median is noise.
_LEAST_LATE = 0.1
#: A rank is behind more often than by chance if that has a smaller probability, for any of the ranks.
_SIGNIFICANCE = 0.01

_Seconds = np.ndarray[Any, np.dtype[np.float64]]
_Rows = np.ndarray[Any, np.dtype[np.int64]]


def skew_row(seconds: _Seconds, ranks: Sequence[int], steps: Sequence[int]) -> SkewRow | None:
    """The skew of [ranks, steps] and its kind; None with one rank, without a step, or if all are alike.

    In each step one rank is the last, by so much behind the median of the others. What that costs in the mean step is
    divided among three causes, and the largest is the kind. One-off is what steps that stand out lie above the median
    step (:func:`~profilers.analysis.statistics.high_outliers`, and at least a tenth as far as the worst), if they are
    at most a tenth of at least ten steps. Of all other steps, fixed is what they lose to ranks that are last more often
    than chance would make them: a binomial test against 1 / ranks at 1 %, Bonferroni's correction for the ranks
    included. Rotating is the rest.
    """
    if len(seconds) < 2 or not seconds.shape[1]:
        return None
    last, behind = seconds.argmax(axis=0), _behind_the_others(seconds)
    if not behind.any():
        return None
    level, late = float(np.median(behind)), _late(behind)
    usual = np.where(late, level, behind)
    always = _more_often_than_chance(last[~late], len(seconds))
    whole, by_them = behind[~late].sum(), behind[~late & np.isin(last, always)].sum()
    parts = {
        FIXED: float(usual.mean() * by_them / whole) if whole else 0.0,
        ONE_OFF: float((behind - usual).mean()),
    }
    parts[ROTATING] = max(0.0, float(behind.mean()) - sum(parts.values()))
    order = np.flatnonzero(late)[np.argsort(-behind[late])][:MOST_ROWS]
    return SkewRow(
        kind=max(parts, key=parts.__getitem__),
        seconds=float(behind.mean()),
        fixed_seconds=parts[FIXED],
        rotating_seconds=parts[ROTATING],
        one_off_seconds=parts[ONE_OFF],
        ranks=[ranks[row] for row in always],
        ranks_share=float(np.isin(last, always).mean()),
        late_steps=int(late.sum()),
        latest=[LateStep(int(steps[step]), ranks[last[step]], float(behind[step])) for step in order],
    )


def _behind_the_others(seconds: _Seconds) -> _Seconds:
    """How much longer the last rank of each step takes than the median of the others."""
    ordered = np.sort(seconds, axis=0)
    return np.asarray(ordered[-1] - np.median(ordered[:-1], axis=0))


def _late(behind: _Seconds) -> np.ndarray[Any, np.dtype[np.bool_]]:
    above = behind - np.median(behind)
    late = high_outliers(behind) & (above >= _LEAST_LATE * above.max())
    rare = len(behind) >= MINIMUM_STEPS and late.sum() <= _MOST_LATE * len(behind)
    return late if rare else np.zeros_like(late)


def _more_often_than_chance(last: _Rows, ranks: int) -> list[int]:
    """Rows that are last so often, the most frequent first."""
    counts = np.bincount(last, minlength=ranks)
    likely = [row for row in np.argsort(-counts, kind="stable").tolist() if counts[row] * ranks > len(last)]
    return [row for row in likely if ranks * chance(int(counts[row]), len(last), 1 / ranks) < _SIGNIFICANCE]


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
        numbers = np.ma.getdata(table.column("step"))
        wanted = np.isin(numbers, steps)
        rank_steps += len(np.unique(numbers[wanted]))
        phases = table.column("phase")[wanted].tolist()
        seconds = table.column("seconds")[wanted].filled(0.0).tolist()
        _add(gaps, rank, numbers[wanted].tolist(), phases, seconds)
    rows = [_row(*key, gaps_alike, rank_steps) for key, gaps_alike in gaps.items()]
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


def _row(after: str | None, before: str | None, gaps: list[_Gap], rank_steps: int) -> GapRow:
    longest = max(gaps)
    whole = sum(gap.seconds for gap in gaps)
    return GapRow(after, before, whole / rank_steps, longest.seconds, longest.rank, longest.step)
