"""Drawings of a step's anatomy: lanes of all ranks, and exposed communication by axis. No numbers are made here.

One step of all ranks on one time axis: phases, pipeline actions and collectives as bars. Pure but for reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from engine.schedules.actions import Work
from profilers.analysis.anatomy import clocks_of
from profilers.collectives.collective_call import CallKey
from profilers.records.operations import is_message
from profilers.records.reader import RunRecords
from profilers.records.table import Table
from profilers.steps.clock_offset import ClockOffset
from workbench.figures.anatomy.schedule import WORDS
from workbench.figures.base import BARE, LINE_BREAK, PHASE_NAMES, bold, empty, figure
from workbench.figures.palette import (
    AXIS_COLORS,
    HIDDEN_COMMUNICATION,
    MEASURED,
    NEUTRAL,
    PHASE_COLORS,
    WORK_COLORS,
    axis_color,
)
from workbench.figures.steps import MILLI, RANKS, SkewSeries

#: Bars of a drawing; where there are more, neighbours of one kind are drawn as one.
MOST_BARS = 1_000
#: Parts of the step's length below which a gap between two of a kind is not drawn.
_FINEST = 2_000
PHASE, ACTION, CALL = "phase", "action", "call"


class LaneBar(NamedTuple):
    """One span, or several of a kind that lie close together; milliseconds since the step's start.

    ``name`` is the phase, the kind of work (F, B, I, W) or the axis; ``text`` is what stands in it, ``hover_text`` what
    is told about it.
    """

    rank: int
    kind: str
    name: str
    start: float
    length: float
    text: str = ""
    hover_text: str = ""
    spans: int = 1
    #: Of a call: its place among those of its step, as in a link.
    call: str = ""


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
        lanes = {(bar.rank, bar.kind, bar.name if bar.kind == CALL else "") for bar in self.bars}
        order = (PHASE, ACTION, CALL)
        return sorted(lanes, key=lambda lane: (lane[0], order.index(lane[1]), lane[2]))


def kept_steps(records: RunRecords) -> list[int]:
    """The steps of which a rank kept spans, ascending."""
    steps_of_ranks = [
        np.unique(np.ma.getdata(records.table(rank, "span").column("step"))) for rank in records.ranks()
    ]
    return [int(step) for step in np.unique(np.concatenate([*steps_of_ranks, np.empty(0, np.int64)]))]


def lane_series(records: RunRecords, step: int, ranks: Sequence[int] | None = None) -> LaneSeries:
    """The bars of one step for some ranks, by default the first ``series.RANKS``."""
    drawn_ranks = list(ranks if ranks is not None else records.ranks()[:RANKS])
    clocks = clocks_of(records)
    of_ranks = {rank: _bars(records, rank, step, clocks.get(rank, ClockOffset())) for rank in drawn_ranks}
    bars = [bar for rank_bars in of_ranks.values() for bar in rank_bars]
    if not bars:
        return LaneSeries(step, drawn_ranks, [], 0.0, 0.0, drawn_ranks)
    origin = min(bar.start for bar in bars)
    length = max(bar.start + bar.length for bar in bars) - origin
    shifted_bars = [bar._replace(start=bar.start - origin) for bar in bars]
    errors = [_error_seconds(clocks.get(rank, ClockOffset()), origin / MILLI) for rank in drawn_ranks]
    without_spans = [
        rank for rank, rank_bars in of_ranks.items() if not any(bar.kind == PHASE for bar in rank_bars)
    ]
    return LaneSeries(
        step, drawn_ranks, _few(shifted_bars, length), length, sum(sorted(errors)[-2:]) * MILLI, without_spans
    )


def _error_seconds(clock: ClockOffset, time_unix: float) -> float:
    """At a time of rank 0's clock."""
    return clock.estimate(time_unix + clock.estimate(time_unix).offset_seconds).error_seconds


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
    starts = clock.align(np.array([getattr(row, "start_unix", np.nan) for row in rows], dtype=float))
    return list(zip(rows, starts.tolist(), strict=True))


def _phases(rank: int, rows: Iterable[tuple[Any, float]]) -> Iterator[LaneBar]:
    for row, start in rows:
        yield LaneBar(rank, PHASE, row.phase, start * MILLI, row.seconds * MILLI)


def _actions(rank: int, rows: Iterable[tuple[Any, float]]) -> Iterator[LaneBar]:
    for row, start in rows:
        hover_text = f"stage {row.stage}, micro-batch {row.micro_batch}"
        yield LaneBar(
            rank, ACTION, row.work, start * MILLI, row.seconds * MILLI, str(row.micro_batch), hover_text
        )


def _calls(rank: int, rows: Iterable[tuple[Any, float]]) -> Iterator[LaneBar]:
    """A pipeline's messages are left out: when one was under way is not known, only when it was posted and taken."""
    counts: dict[tuple[str, str], int] = {}
    for row, start in rows:
        kind = row.axis, row.operation
        counts[kind] = counts.get(kind, -1) + 1
        if row.seconds is not None and not (row.axis == "pp" and is_message(row.operation)):
            wait_text = (
                "" if row.exposed_seconds is None else f", waited for {row.exposed_seconds * MILLI:,.2f} ms"
            )
            hover_text = f"{row.operation}, {row.bytes / 1e6:,.2f} MB{wait_text}"
            key = CallKey(*kind, counts[kind]).link_text()
            yield LaneBar(rank, CALL, row.axis, start * MILLI, row.seconds * MILLI, "", hover_text, call=key)


def _few(bars: list[LaneBar], length: float) -> list[LaneBar]:
    """At most ``MOST_BARS``: the finer the gaps that are still drawn, the more bars there are."""
    finest, merged_bars = length / _FINEST, bars
    while len(merged_bars) > MOST_BARS:
        merged_bars, finest = _merge_bars(bars, finest), 2 * finest
        if finest > 4 * length:
            return sorted(merged_bars, key=lambda bar: -bar.length)[:MOST_BARS]
    return merged_bars


def _merge_bars(bars: Iterable[LaneBar], gap: float) -> list[LaneBar]:
    """Bars of one lane and name that end less than ``gap`` before the next begins, as one."""
    last: dict[tuple[int, str, str], int] = {}
    merged_bars: list[LaneBar] = []
    for bar in sorted(bars, key=lambda bar: bar.start):
        key = bar.rank, bar.kind, bar.name
        place = last.get(key)
        if place is not None and bar.start - (merged_bars[place].start + merged_bars[place].length) < gap:
            previous = merged_bars[place]
            end = max(previous.start + previous.length, bar.start + bar.length)
            count = previous.spans + bar.spans
            merged_bars[place] = previous._replace(
                length=end - previous.start,
                spans=count,
                text="",
                hover_text=f"{count:,} close together",
                call="",
            )
        else:
            last[key] = len(merged_bars)
            merged_bars.append(bar)
    return merged_bars


_ROW, _FRAME, _LEGEND = 22, 160, 92
_NARROW = {PHASE: 0.9, ACTION: 0.9, CALL: 0.55}


class _Kind(NamedTuple):
    """What one trace stands for in the legend."""

    label: str
    color: str


def lanes(series: LaneSeries, revision: str = "") -> go.Figure:
    """One group of rows a rank, on one time axis."""
    rows = series.lanes()
    title = f"Step {series.step:,} by rank"
    drawing = figure(title, "ms since the step's start", "", revision, _FRAME + _ROW * max(4, len(rows)))
    if not rows:
        return empty(drawing, "no spans of this step were kept")
    place = {lane: row for row, lane in enumerate(rows)}
    for (kind, name), bars in _by_kind(series.bars).items():
        drawing.add_bar(**_trace(kind, name, bars, place))
    drawing.update_layout(barmode="overlay", bargap=0, hovermode="closest", margin_t=_LEGEND)
    drawing.update_xaxes(range=[0, series.milliseconds * 1.005], showgrid=True)
    labels = [_lane_name(*lane) for lane in rows]
    drawing.update_yaxes(BARE | {"tickvals": list(range(len(rows))), "ticktext": labels})
    drawing.update_yaxes(range=[len(rows) - 0.5, -0.5], automargin=True)
    for row in range(1, len(rows)):
        if rows[row][0] != rows[row - 1][0]:
            drawing.add_hline(y=row - 0.5, line={"width": 1, "color": NEUTRAL}, opacity=0.5)
    return drawing


def _by_kind(bars: Sequence[LaneBar]) -> dict[tuple[str, str], list[LaneBar]]:
    """Traces in the order of the legend."""
    bars_of_lanes: dict[tuple[str, str], list[LaneBar]] = {}
    order = [*((PHASE, name) for name in PHASE_COLORS), *((ACTION, work.value) for work in Work)]
    order += [
        (CALL, axis) for axis in dict.fromkeys([*AXIS_COLORS, *(b.name for b in bars if b.kind == CALL)])
    ]
    for bar in bars:
        bars_of_lanes.setdefault((bar.kind, bar.name), []).append(bar)
    return {key: bars_of_lanes[key] for key in order if key in bars_of_lanes}


def _trace(
    kind: str, name: str, bars: list[LaneBar], place: Mapping[tuple[int, str, str], int]
) -> dict[str, Any]:
    look = _look(kind, name)
    return {
        "orientation": "h",
        "name": look.label,
        "y": [place[bar.rank, kind, name if kind == CALL else ""] for bar in bars],
        "x": [round(bar.length, 4) for bar in bars],
        "base": [round(bar.start, 4) for bar in bars],
        "width": _NARROW[kind],
        "text": [bar.text for bar in bars],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "both",
        "marker": {"color": look.color, "line": {"width": 0}},
        "customdata": [
            [bar.rank, f"{LINE_BREAK}{bar.hover_text}" if bar.hover_text else "", bar.call] for bar in bars
        ],
        "hovertemplate": "rank %{customdata[0]}: %{x:,.2f} ms from %{base:,.2f} ms on%{customdata[1]}"
        "<extra>%{fullData.name}</extra>",
    }


def _look(kind: str, name: str) -> _Kind:
    if kind == PHASE:
        return _Kind(PHASE_NAMES.get(name, name), PHASE_COLORS.get(name, PHASE_COLORS["other"]))
    if kind == ACTION:
        work = Work(name)
        return _Kind(f"{name}: {WORDS[work]}", WORK_COLORS[work])
    return _Kind(f"{name} communication", axis_color(name))


def _lane_name(rank: int, kind: str, axis: str) -> str:
    return bold(f"rank {rank}") if kind == PHASE else "actions" if kind == ACTION else axis


def axis_bars(
    exposed: Mapping[str, float],
    hidden: Mapping[str, float],
    revision: str = "",
    empty_text: str = "no communication was recorded",
) -> go.Figure:
    """Bars of the mean step over all ranks: what was waited for and what ran beside computation; seconds by axis.
    ``empty_text`` is said where there is no axis.
    """
    axes = sorted({*exposed, *hidden}, key=lambda axis: -exposed.get(axis, 0.0))
    height = 130 + 30 * max(2, len(axes))
    drawing = figure("Communication by axis in the mean step", "ms per step", "", revision, height)
    if not axes:
        return empty(drawing, empty_text)
    bars = {
        "exposed": (exposed, PHASE_COLORS["communication_exposed"]),
        "hidden behind compute": (hidden, HIDDEN_COMMUNICATION),
    }
    for name, (seconds, color) in bars.items():
        drawing.add_bar(
            y=axes,
            x=[seconds[axis] * 1e3 if axis in seconds else None for axis in axes],
            name=name,
            orientation="h",
            marker={"color": color, "line": {"width": 0}},
            hovertemplate="%{x:,.2f} ms",
        )
    drawing.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    drawing.update_xaxes(rangemode="tozero", showgrid=True)
    return drawing.update_layout(barmode="stack", hovermode="y unified")


def skew(series: SkewSeries, revision: str = "") -> go.Figure:
    """Busiest minus least busy rank, step after step; the busiest one's number is told where one points."""
    drawing = figure("Skew between ranks", "step", "ms, most minus least own work", revision, 250)
    if not series.steps:
        return empty(drawing, "needs two ranks that have ended a step")
    drawing.add_scatter(
        x=series.steps,
        y=series.milliseconds,
        name="skew",
        mode="lines",
        line={"color": MEASURED, "width": 1.6},
        customdata=series.busiest,
        hovertemplate="%{y:,.2f} ms, rank %{customdata} is busiest",
    )
    return drawing.update_yaxes(rangemode="tozero")


def lanes_note(series: LaneSeries) -> str:
    """How far to trust the time axis, and what is not drawn."""
    clocks = (
        f"Clocks of different hosts are aligned within {series.clock_error_milliseconds:,.3f} ms."
        if series.clock_error_milliseconds
        else "All these ranks read one clock."
    )
    merged_count = sum(bar.spans > 1 for bar in series.bars)
    merged_text = f" {merged_count:,} bars stand for several spans close together." if merged_count else ""
    ranks_without_spans = ", ".join(map(str, series.without_spans))
    gap_text = (
        f" No phases of this step were kept on rank {ranks_without_spans}." if ranks_without_spans else ""
    )
    return (
        f"{clocks}{merged_text}{gap_text} A wait for communication inside a phase is drawn below it, with its axis. "
        "Messages between stages are not drawn: the phase bubble is the wait for them."
    )
