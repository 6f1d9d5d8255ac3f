"""What the page Live holds of a run: its newest records as they are, older ones thinned to what its charts show.

Records older than the newest are divided into stretches of equal length; once there are too many, two become
one. Of each stretch those records stay that have the lowest and the highest of a reading whose field asks for that: no
spike is lost however long a run gets; of what is shown as a mean, the mean stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import NamedTuple

import numpy as np

from profilers.records.schema import PHASES, extreme_fields
from profilers.records.table import Table
from workbench.records.columns import (
    Array,
    Columns,
    LazyColumns,
    common_steps,
    fill_missing,
    means_by_step,
    rows_of,
    slowest_rank,
    stretch_length,
)

#: Newest records of a stream that are held as they are: at least so many, and less than twice as many.
NEWEST = 4096
#: Older ones are divided into so many stretches at the most, and more than half as many.
STRETCHES = 1024
#: Means of phases are held of so many blocks of steps at the most, and of half as many or more once there were more.
BLOCKS = 2880
#: Above this many ranks a figure shows the fastest, the median and the slowest one instead of all.
LINES = 8
#: Added columns: the mean of a stretch, in each of its records, and for how many readings a record stands in it.
MEAN, WEIGHT = "mean_", "weight"
#: Records of a file that are decoded at a time.
_CHUNK = 16_384
_SPANS = (*(f"{phase}_seconds" for phase in PHASES), "step_seconds")

Rows = dict[str, Array]


class Policy(NamedTuple):
    """Of each stretch, and each value of ``group`` in it, the last record stays, and those with the lowest and the
    highest of each field that says so (``KEEP_EXTREMES``); of ``mean`` the mean is held besides.
    """

    group: str | None = None
    mean: str | None = None


#: Stream -> what of it stays.
POLICIES = {
    "memory": Policy(),
    "host": Policy(mean="cpu_fraction"),
    "gpu": Policy("gpu"),
    "core": Policy("core", mean="busy_fraction"),
    "process": Policy("rank"),
    "network": Policy("interface"),
}


class _Words:
    """Strings of a stream as small numbers: few different ones stand in very many records."""

    def __init__(self) -> None:
        self._known = [""]
        self._numbers = {"": 0}

    def numbers(self, texts: Array) -> Array:
        distinct, places = np.unique(texts, return_inverse=True)
        for text in distinct.tolist():
            if text not in self._numbers:
                self._numbers[text] = len(self._known)
                self._known.append(text)
        numbers = np.array([self._numbers[text] for text in distinct.tolist()], np.int32)
        return np.asarray(numbers[places])

    def texts(self, numbers: Array) -> Array:
        return np.asarray(np.array(self._known)[numbers])


class _Series:
    """Thinned records and the newest ones after them. Arrays are replaced, never written to: a look keeps its own."""

    def __init__(self, words: _Words) -> None:
        self.old: Rows = {}
        self.new: Rows = {}
        self._words = words
        self._texts: set[str] = set()

    @property
    def newest(self) -> int:
        """How many records were added since the last thinning, and kept as newest by it."""
        return len(next(iter(self.new.values()), ()))

    def add(self, table: Table) -> None:
        rows = {}
        for field in fields(table.record_class):
            values = fill_missing(table, field.name)
            if values.dtype.kind == "U":
                self._texts.add(field.name)
                values = self._words.numbers(values)
            rows[field.name] = values
        self.new = join_records(self.new, rows)

    def columns(self) -> Columns:
        old, new, texts, words = self.old, self.new, frozenset(self._texts), self._words

        def make(name: str) -> Array:
            values = np.concatenate([old[name], new[name]]) if old else new[name]
            return words.texts(values) if name in texts else values

        return LazyColumns(list(new), make)


def join_records(first: Rows, second: Rows) -> Rows:
    """Records one after the other; a column that only the second ones have is not there before."""
    return {
        name: np.concatenate([first[name], values]) if name in first else values
        for name, values in second.items()
    }


def parts(tables: Mapping[int, Table]) -> Iterator[dict[int, Table]]:
    """Tables a stretch at a time: the first look at a long run does not hold all of it either."""
    longest = max(map(len, tables.values()), default=0)
    for start in range(0, max(1, longest), _CHUNK):
        yield {key: table.part(start, start + _CHUNK) for key, table in tables.items()}


class KeptStream:
    """One record file of readings, followed."""

    def __init__(self, stream: str) -> None:
        self._policy, self._extreme_fields, self._words = POLICIES[stream], extreme_fields(stream), _Words()
        self._series = _Series(self._words)
        self._first_new = 0
        self._places: Array = np.empty(0, np.int64)
        self._width = 1

    def add(self, table: Table) -> None:
        """Takes the records that were written since the last call."""
        for part in parts({0: table}):
            self._series.add(part[0])
            self._series.new = self._with_means(self._series.new)
            if self._series.newest >= 2 * NEWEST:
                self._thin()

    def columns(self) -> Columns:
        """What is held by now."""
        return self._series.columns()

    def _with_means(self, rows: Rows) -> Rows:
        if self._policy.mean is None:
            return rows
        values = np.asarray(rows[self._policy.mean], dtype=float)
        return rows | {MEAN + self._policy.mean: values, WEIGHT: np.isfinite(values).astype(float)}

    def _thin(self) -> None:
        series = self._series
        count = series.newest - NEWEST
        places = np.concatenate([self._places, self._first_new + np.arange(count)])
        self._first_new += count
        rows = {name: values[:count] for name, values in series.new.items()}
        rows = join_records(series.old, rows)
        while self._first_new // self._width >= STRETCHES:
            self._width *= 2
        stretches = self._stretches(rows, places // self._width)
        kept_rows = extremes(stretches, [rows[name] for name in self._extreme_fields])
        kept_rows[0] = True
        kept_rows[np.unique(stretches[::-1], return_index=True)[1] * -1 + len(stretches) - 1] = True
        if self._policy.mean is not None:
            self._average(rows, stretches, kept_rows)
        self._places = places[kept_rows]
        series.old = {name: values[kept_rows] for name, values in rows.items()}
        series.new = {name: values[count:].copy() for name, values in series.new.items()}

    def _stretches(self, rows: Rows, stretches: Array) -> Array:
        """The number of each record's stretch, counted for each value of the group on its own."""
        if self._policy.group is None:
            return stretches
        groups = np.unique(rows[self._policy.group], return_inverse=True)[1]
        return np.asarray(stretches * (int(groups.max(initial=0)) + 1) + groups)

    def _average(self, rows: Rows, stretches: Array, kept_rows: Array) -> None:
        name = MEAN + str(self._policy.mean)
        numbers = np.unique(stretches, return_inverse=True)[1]
        weights = np.bincount(numbers, rows[WEIGHT])
        sums = np.bincount(numbers, rows[WEIGHT] * np.nan_to_num(rows[name]))
        means = np.divide(sums, weights, out=np.full(len(sums), np.nan), where=weights > 0)
        rows[name] = means[numbers]
        rows[WEIGHT] = (weights / np.maximum(np.bincount(numbers, kept_rows), 1))[numbers]


def extremes(stretches: Array, readings: Iterable[Array]) -> Array:
    """Which records have the lowest or the highest of a reading in their stretch; of several the first."""
    is_kept = np.zeros(len(stretches), dtype=bool)
    in_order = bool(np.all(stretches[1:] >= stretches[:-1]))
    order = np.arange(len(stretches)) if in_order else np.argsort(stretches, kind="stable")
    for values in readings:
        finite = order[np.isfinite(values[order])]
        if not len(finite):
            continue
        finite_values, finite_stretches = values[finite], stretches[finite]
        starts = np.flatnonzero(np.diff(finite_stretches, prepend=finite_stretches[0] - 1))
        counts = np.diff(starts, append=len(finite))
        for most in (np.minimum, np.maximum):
            peaks = np.flatnonzero(finite_values == np.repeat(most.reduceat(finite_values, starts), counts))
            is_kept[
                finite[
                    peaks[np.flatnonzero(np.diff(finite_stretches[peaks], prepend=finite_stretches[0] - 1))]
                ]
            ] = True
    return is_kept


class PhaseMeans:
    """Means of a series of steps over blocks of ``width`` steps each, which is doubled once there are too many."""

    def __init__(self) -> None:
        self.width, self._first = 1, 0
        self._sums, self._known = np.empty((len(_SPANS), 0)), np.empty((len(_SPANS), 0))

    def add(self, columns: Columns) -> None:
        """Takes more steps; those before the very first one are left out."""
        steps = np.asarray(columns["step"], dtype=np.int64)
        if not len(steps):
            return
        if not self._sums.shape[1]:
            self._first = int(steps[0])
        places = steps - self._first
        is_inside = places >= 0
        while int(places.max()) // self.width >= BLOCKS:
            self._sums, self._known, self.width = _pairs(self._sums), _pairs(self._known), 2 * self.width
        blocks = max(int(places.max()) // self.width + 1, self._sums.shape[1])
        self._sums, self._known = _pad_blocks(self._sums, blocks), _pad_blocks(self._known, blocks)
        numbers = places[is_inside] // self.width
        for row, name in enumerate(_SPANS):
            values = np.asarray(columns[name], dtype=float)[is_inside]
            is_finite = np.isfinite(values)
            self._sums[row] += np.bincount(numbers, np.where(is_finite, values, 0.0), minlength=blocks)
            self._known[row] += np.bincount(numbers, is_finite, minlength=blocks)

    def copy(self) -> PhaseMeans:
        """As it is now, whatever is added later."""
        other = PhaseMeans()
        other.width, other._first, other._sums, other._known = (
            self.width, self._first, self._sums.copy(), self._known.copy(),
        )  # fmt: skip
        return other

    def bars(self, most: int) -> tuple[Array, int, dict[str, Array]]:
        """At most ``most`` bars: the first step of each, how many steps one has, and means by field; NaN of none."""
        blocks = np.flatnonzero(self._known[-1])
        length = stretch_length(len(blocks), most)
        starts = np.arange(0, len(blocks), length)
        if not len(blocks):
            return starts, length, {}
        sums = np.add.reduceat(self._sums[:, blocks], starts, axis=1)
        counts = np.add.reduceat(self._known[:, blocks], starts, axis=1)
        means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
        steps = self._first + blocks[starts] * self.width
        return steps, length * self.width, dict(zip(_SPANS, means, strict=True))


def _pairs(blocks: Array) -> Array:
    return np.asarray(
        _pad_blocks(blocks, blocks.shape[1] + blocks.shape[1] % 2).reshape(len(blocks), -1, 2).sum(axis=2)
    )


def _pad_blocks(blocks: Array, count: int) -> Array:
    return np.pad(blocks, ((0, 0), (0, count - blocks.shape[1])))


class KeptSteps:
    """The steps of all ranks, followed. The same ones stay of each rank, for figures compare ranks step by step."""

    def __init__(self) -> None:
        self._words = _Words()
        self._ranks: dict[int, _Series] = {}
        self._means: dict[int | None, PhaseMeans] = {None: PhaseMeans()}
        self._done, self._width = -1, 1

    def add(self, tables: Mapping[int, Table]) -> None:
        """Takes the records that were written since the last call, of all ranks."""
        for part in parts(tables):
            for rank, table in part.items():
                self._ranks.setdefault(rank, _Series(self._words)).add(table)
            if max((series.newest for series in self._ranks.values()), default=0) >= 2 * NEWEST:
                self._thin()

    def columns(self) -> dict[int, Columns]:
        """What is held by now, by rank."""
        return {rank: series.columns() for rank, series in sorted(self._ranks.items())}

    def means(self) -> dict[int | None, PhaseMeans]:
        """Over all steps: by rank, and for None of the slowest rank of each step."""
        means = {rank: means.copy() for rank, means in self._means.items()}
        for rank, series in self._ranks.items():
            means.setdefault(rank, PhaseMeans()).add(series.new)
        means[None].add(self._slowest())
        return means

    def _slowest(self) -> Columns:
        """The slowest rank of each step that is not in the means yet."""
        new_parts = {}
        for rank, series in self._ranks.items():
            if len(series.columns()["step"]):
                new_parts[rank] = _part(series.new, _count_before(series.new["step"], self._done + 1), None)
        is_behind = any(not len(rows["step"]) for rows in new_parts.values())
        return {"step": np.empty(0, np.int64)} if is_behind or not new_parts else slowest_rank(new_parts)

    def _thin(self) -> None:
        written = [series.new["step"] for series in self._ranks.values() if series.newest]
        cut = min(int(steps[-NEWEST] if len(steps) >= NEWEST else steps[0]) for steps in written)
        slowest = self._slowest()
        count = _count_before(slowest["step"], cut)
        self._means[None].add(_part(slowest, 0, count))
        self._done = int(slowest["step"][count - 1]) if count else self._done
        counts, old = {}, {}
        for rank, series in self._ranks.items():
            counts[rank] = _count_before(series.new["step"], cut)
            if series.newest - counts[rank] >= 2 * NEWEST:  # it runs ahead of a rank that stands still
                counts[rank] = series.newest - NEWEST
            rows = dict(_part(series.new, 0, counts[rank]))
            self._means.setdefault(rank, PhaseMeans()).add(rows)
            old[rank] = join_records(series.old, rows)
        kept_steps = self._steps_to_keep({rank: rows for rank, rows in old.items() if len(rows["step"])})
        for rank, series in self._ranks.items():
            mask = np.isin(old[rank]["step"], kept_steps)
            series.old = {name: values[mask] for name, values in old[rank].items()}
            series.new = {name: values[counts[rank] :].copy() for name, values in series.new.items()}

    def _steps_to_keep(self, ranks: Mapping[int, Rows]) -> Array:
        """The steps that stay: what a line of a figure has as its lowest and highest, and where warm-up ends."""
        first = min((int(rows["step"].min()) for rows in ranks.values()), default=0)
        last = max((int(rows["step"].max()) for rows in ranks.values()), default=0)
        while (last - first) // self._width >= STRETCHES:
            self._width *= 2
        kept_steps = [np.array([first, last])]
        for steps, values in [*_lines(list(ranks.values())), _losses(ranks.values())]:
            kept_steps.append(steps[extremes((steps - first) // self._width, [values])])
        for rows in ranks.values():
            kept_steps.append(rows["step"][np.flatnonzero(rows["measured"])[:1]])
        return np.unique(np.concatenate(kept_steps))


def _count_before(steps: Array, step: int) -> int:
    """How many records there are before the first one of this step or a later one."""
    places = np.flatnonzero(steps >= step)
    return int(places[0]) if len(places) else len(steps)


def _part(rows: Columns, start: int, stop: int | None) -> Columns:
    return LazyColumns(list(rows), lambda name: rows[name][start:stop])


def _lines(ranks: Sequence[Rows]) -> list[tuple[Array, Array]]:
    """Steps and seconds of each line of step times."""
    if len(ranks) <= LINES:
        return [(rows["step"], rows["step_seconds"]) for rows in ranks]
    common = common_steps([rows["step"] for rows in ranks])
    seconds = np.stack([rows["step_seconds"][rows_of(rows["step"], common)] for rows in ranks])
    return [
        (common, seconds.max(axis=0)),
        (common, np.median(seconds, axis=0)),
        (common, seconds.min(axis=0)),
    ]


def _losses(ranks: Iterable[Rows]) -> tuple[Array, Array]:
    rows = list(ranks)
    steps = np.concatenate([row["step"] for row in rows]) if rows else np.empty(0, np.int64)
    losses = np.concatenate([row["loss"] for row in rows]).astype(float) if rows else np.empty(0)
    is_finite = np.isfinite(losses)
    return means_by_step(steps[is_finite], losses[is_finite])
