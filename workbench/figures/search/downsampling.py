"""Figures of thousands of trials with as many points as can be told apart, and what that leaves out in words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar

from workbench.figures.search.front import FrontPoint, FrontSeries
from workbench.figures.study import TrialMark, TrialPoint, TrialSeries
from workbench.text import words

#: Studies up to so many trials are drawn as they are.
WHOLE = 600
#: Of longer ones so many of the newest, and the earlier ones in so many groups of equal length.
NEWEST, GROUPS = 100, 200
#: A front in the plane is drawn on a grid: of each cell one of the points that are beaten.
CELLS = 30
Point = TypeVar("Point", TrialPoint, TrialMark)


def downsample(series: TrialSeries) -> TrialSeries:
    """Of each group of trials in a row the best, the middle one and the worst of their kind, and all of the newest;
    failures of a group as one mark that counts them. The line of the best so far is whole.
    """
    measured_groups = (series.exact, series.lossy, series.repeated, series.ruled_out)
    count = sum(len(kind) for kind in measured_groups) + len(series.failed)
    if count <= WHOLE:
        return series
    last = max(point.number for kind in (*measured_groups, series.failed) for point in kind)
    size = max(1, -(-(last + 1 - NEWEST) // GROUPS))
    first_new = last + 1 - NEWEST
    exact, lossy, ruled_out = (
        _extremes(kind, size, first_new) for kind in (series.exact, series.lossy, series.ruled_out)
    )
    failed = _group_failures(series.failed, size, first_new)
    drawn_count = sum(len(kind) for kind in (exact, lossy, series.repeated, ruled_out)) + len(failed)
    numbers, values = _steps(series.best_numbers, series.best_values)
    return series._replace(
        exact=exact,
        lossy=lossy,
        ruled_out=ruled_out,
        failed=failed,
        best_numbers=numbers,
        best_values=values,
        note=f"Drawn are {drawn_count:,} points for {count:,} trials: all of the newest {NEWEST}, before them the "
        f"best, the middle one and the worst of each {size:,} in a row; failures among these are one mark.",
    )


def _extremes(points: Sequence[TrialPoint], size: int, first_new: int) -> list[TrialPoint]:
    extremes: list[TrialPoint] = []
    for is_new, group in _groups(points, size, first_new):
        if is_new:
            extremes += group
        else:
            ranked = sorted(group, key=lambda point: point.value)
            extremes += sorted({ranked[0], ranked[len(ranked) // 2], ranked[-1]})
    return extremes


def _group_failures(marks: Sequence[TrialMark], size: int, first_new: int) -> list[TrialMark]:
    grouped_marks: list[TrialMark] = []
    for is_new, group in _groups(marks, size, first_new):
        grouped_marks += group if is_new or len(group) == 1 else [_merge_marks(group)]
    return grouped_marks


def _merge_marks(group: Sequence[TrialMark]) -> TrialMark:
    """One mark for several, where the last of them stands."""
    counts = Counter(mark.outcome for mark in group).most_common()
    endings_text = ", ".join(f"{count} {words.ending_words(outcome)}" for outcome, count in counts)
    newest = group[-1]
    text = f"{len(group)} of trials {group[0].number} to {newest.number}: {endings_text}; the last: {newest.words}"
    return TrialMark(newest.number, counts[0][0], text)


def _groups(points: Iterable[Point], size: int, first_new: int) -> Iterable[tuple[bool, list[Point]]]:
    """Points in a row, and whether they are of the newest, which stay together."""

    def place(point: Point) -> tuple[bool, int]:
        is_new = point.number >= first_new
        return is_new, 0 if is_new else point.number // size

    for (is_new, _), group in groupby(sorted(points, key=lambda point: point.number), key=place):
        yield is_new, list(group)


def _steps(numbers: Sequence[int], values: Sequence[float]) -> tuple[list[int], list[float]]:
    """A line that rises in steps, by its steps and its end."""
    places = [
        place
        for place in range(len(values))
        if place in (0, len(values) - 1) or values[place] != values[place - 1]
    ]
    return [numbers[place] for place in places], [values[place] for place in places]


def downsample_front(series: FrontSeries) -> FrontSeries:
    """All of the front, and of the points that are beaten or ruled out one in each cell of a grid."""
    count = len(series.dominated) + len(series.ruled_out)
    if count <= WHOLE:
        return series
    beaten, ruled_out = _one_each(series.dominated), _one_each(series.ruled_out)
    note = f"Drawn are all of the front, and {len(beaten) + len(ruled_out):,} of the {count:,} other trials: "
    return series._replace(
        dominated=beaten, ruled_out=ruled_out, note=note + "one where several would hide each other."
    )


def _one_each(places: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Of the points of a cell the newest."""
    if not places:
        return []
    xs, ys = [place.x for place in places], [place.y for place in places]
    x_range, y_range = (min(xs), max(xs)), (min(ys), max(ys))
    cells = {(_cell(place.x, *x_range), _cell(place.y, *y_range)): place for place in places}
    return sorted(cells.values())


def _cell(value: float, low: float, high: float) -> int:
    return min(CELLS - 1, int((value - low) / (high - low) * CELLS)) if high > low else 0
