"""One step of all ranks on one time axis: phases, pipeline actions and collectives as bars. Pure but for reading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from profilers.analysis.anatomy import clocks_of
from profilers.records.reader import RunRecords
from profilers.records.table import Table
from profilers.steps.clock_offset import ClockOffset
from workbench.series import MILLI, RANKS

#: Bars of a drawing; where there are more, neighbours of one kind are drawn as one.
MOST_BARS = 1_000
#: Parts of the step's length below which a gap between two of a kind is not drawn.
_FINEST = 2_000
_MESSAGES = {("pp", "send"), ("pp", "recv")}
PHASE, ACTION, CALL = "phase", "action", "call"


class LaneBar(NamedTuple):
    """One span, or several of a kind that lie close together; milliseconds since the step's start.

    ``name`` is the phase, the kind of work (F, B, I, W) or the axis; ``text`` is what stands in it, ``about`` what is
    told about it.
    """

    rank: int
    kind: str
    name: str
    start: float
    length: float
    text: str = ""
    about: str = ""
    spans: int = 1


class LaneSeries(NamedTuple):
    """The bars of one step, and what its time axis is worth."""

    step: int
    ranks: list[int]
    bars: list[LaneBar]
    milliseconds: float
    #: How far the clocks of two of these ranks may be apart after alignment.
    clock_error_milliseconds: float
    #: Ranks that have no spans of this step.
    without_spans: list[int]

    def lanes(self) -> list[tuple[int, str, str]]:
        """(rank, kind, axis) of each lane from the top: phases, actions, one lane an axis."""
        found = {(bar.rank, bar.kind, bar.name if bar.kind == CALL else "") for bar in self.bars}
        order = (PHASE, ACTION, CALL)
        return sorted(found, key=lambda lane: (lane[0], order.index(lane[1]), lane[2]))


def kept_steps(records: RunRecords) -> list[int]:
    """The steps of which a rank kept spans, ascending."""
    found = [np.unique(np.ma.getdata(records.table(rank, "span").column("step"))) for rank in records.ranks()]
    return [int(step) for step in np.unique(np.concatenate([*found, np.empty(0, np.int64)]))]


def lane_series(records: RunRecords, step: int, ranks: Sequence[int] | None = None) -> LaneSeries:
    """The bars of one step for some ranks, by default the first ``series.RANKS``."""
    shown = list(ranks if ranks is not None else records.ranks()[:RANKS])
    clocks = clocks_of(records)
    of_ranks = {rank: _bars(records, rank, step, clocks.get(rank, ClockOffset())) for rank in shown}
    bars = [bar for found in of_ranks.values() for bar in found]
    if not bars:
        return LaneSeries(step, shown, [], 0.0, 0.0, shown)
    origin = min(bar.start for bar in bars)
    length = max(bar.start + bar.length for bar in bars) - origin
    moved = [bar._replace(start=bar.start - origin) for bar in bars]
    errors = [_error_seconds(clocks.get(rank, ClockOffset()), origin / MILLI) for rank in shown]
    without = [rank for rank, found in of_ranks.items() if not any(bar.kind == PHASE for bar in found)]
    return LaneSeries(step, shown, _few(moved, length), length, sum(sorted(errors)[-2:]) * MILLI, without)


def _error_seconds(clock: ClockOffset, time_unix: float) -> float:
    """At a time of rank 0's clock."""
    return clock.at(time_unix + clock.at(time_unix).offset_seconds).error_seconds


def _bars(records: RunRecords, rank: int, step: int, clock: ClockOffset) -> list[LaneBar]:
    return [
        *_phases(rank, _rows(records.table(rank, "span"), step, clock)),
        *_actions(rank, _rows(records.table(rank, "action"), step, clock)),
        *_calls(rank, _rows(records.table(rank, "comm"), step, clock)),
    ]


def _rows(table: Table, step: int, clock: ClockOffset) -> list[tuple[Any, float]]:
    """The records of a step, each with its start by the clock of rank 0."""
    places = np.flatnonzero(np.ma.getdata(table.column("step")) == step)
    if not len(places):
        return []
    rows = table.part(int(places[0]), int(places[-1]) + 1).rows()
    starts = clock.aligned(np.array([getattr(row, "start_unix", np.nan) for row in rows], dtype=float))
    return list(zip(rows, starts.tolist(), strict=True))


def _phases(rank: int, rows: Iterable[tuple[Any, float]]) -> Iterator[LaneBar]:
    for row, start in rows:
        yield LaneBar(rank, PHASE, row.phase, start * MILLI, row.seconds * MILLI)


def _actions(rank: int, rows: Iterable[tuple[Any, float]]) -> Iterator[LaneBar]:
    for row, start in rows:
        about = f"stage {row.stage}, micro-batch {row.micro_batch}"
        yield LaneBar(rank, ACTION, row.work, start * MILLI, row.seconds * MILLI, str(row.micro_batch), about)


def _calls(rank: int, rows: Iterable[tuple[Any, float]]) -> Iterator[LaneBar]:
    """A pipeline's messages are left out: when one was under way is not known, only when it was posted and taken."""
    for row, start in rows:
        if row.seconds is not None and (row.axis, row.operation) not in _MESSAGES:
            waited = (
                "" if row.exposed_seconds is None else f", waited for {row.exposed_seconds * MILLI:,.2f} ms"
            )
            about = f"{row.operation}, {row.bytes / 1e6:,.2f} MB{waited}"
            yield LaneBar(rank, CALL, row.axis, start * MILLI, row.seconds * MILLI, "", about)


def _few(bars: list[LaneBar], length: float) -> list[LaneBar]:
    """At most ``MOST_BARS``: the finer the gaps that are still drawn, the more bars there are."""
    finest, found = length / _FINEST, bars
    while len(found) > MOST_BARS:
        found, finest = _merged(bars, finest), 2 * finest
        if finest > 4 * length:
            return sorted(found, key=lambda bar: -bar.length)[:MOST_BARS]
    return found


def _merged(bars: Iterable[LaneBar], gap: float) -> list[LaneBar]:
    """Bars of one lane and name that end less than ``gap`` before the next begins, as one."""
    last: dict[tuple[int, str, str], int] = {}
    made: list[LaneBar] = []
    for bar in sorted(bars, key=lambda bar: bar.start):
        key = bar.rank, bar.kind, bar.name
        place = last.get(key)
        if place is not None and bar.start - (made[place].start + made[place].length) < gap:
            one = made[place]
            end = max(one.start + one.length, bar.start + bar.length)
            count = one.spans + bar.spans
            made[place] = one._replace(
                length=end - one.start, spans=count, text="", about=f"{count:,} close together"
            )
        else:
            last[key] = len(made)
            made.append(bar)
    return made
