"""Drawings of a step's anatomy: lanes of all ranks, and exposed communication by axis. No numbers are made here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from engine.parallel.schedules.actions import Work
from workbench.figures import (
    BARE,
    HIDDEN_COMMUNICATION,
    LINE_COLORS,
    PHASE_COLORS,
    PHASE_NAMES,
    empty,
    figure,
)
from workbench.lanes import ACTION, CALL, PHASE, LaneBar, LaneSeries
from workbench.schedule_figures import COLORS
from workbench.schedule_series import WORDS
from workbench.skew import SkewSeries

_ROW, _FRAME, _LEGEND = 22, 160, 92
_NARROW = {PHASE: 0.9, ACTION: 0.9, CALL: 0.55}
#: Without one of its own, an axis has the colour of those that are not named.
_AXES = dict(zip(("dp", "tp", "pp", "cp", "ep"), LINE_COLORS, strict=False))


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
            drawing.add_hline(y=row - 0.5, line={"width": 1, "color": PHASE_COLORS["other"]}, opacity=0.5)
    return drawing


def _by_kind(bars: Sequence[LaneBar]) -> dict[tuple[str, str], list[LaneBar]]:
    """Traces in the order of the legend."""
    found: dict[tuple[str, str], list[LaneBar]] = {}
    order = [*((PHASE, name) for name in PHASE_COLORS), *((ACTION, work.value) for work in Work)]
    order += [(CALL, axis) for axis in dict.fromkeys([*_AXES, *(b.name for b in bars if b.kind == CALL)])]
    for bar in bars:
        found.setdefault((bar.kind, bar.name), []).append(bar)
    return {key: found[key] for key in order if key in found}


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
        "customdata": [[bar.rank, f"<br>{bar.about}" if bar.about else ""] for bar in bars],
        "hovertemplate": "rank %{customdata[0]}: %{x:,.2f} ms from %{base:,.2f} ms on%{customdata[1]}"
        "<extra>%{fullData.name}</extra>",
    }


def _look(kind: str, name: str) -> _Kind:
    if kind == PHASE:
        return _Kind(PHASE_NAMES.get(name, name), PHASE_COLORS.get(name, PHASE_COLORS["other"]))
    if kind == ACTION:
        work = Work(name)
        return _Kind(f"{name}: {WORDS[work]}", COLORS[work])
    return _Kind(f"{name} communication", _AXES.get(name.partition("_")[0], LINE_COLORS[-1]))


def _lane_name(rank: int, kind: str, axis: str) -> str:
    return f"<b>rank {rank}</b>" if kind == PHASE else "actions" if kind == ACTION else axis


def exposed_by_axis(
    exposed: Mapping[str, float], hidden: Mapping[str, float], revision: str = ""
) -> go.Figure:
    """Bars of a typical step: what was waited for and what ran beside computation; seconds by axis."""
    axes = sorted({*exposed, *hidden}, key=lambda axis: -exposed.get(axis, 0.0))
    height = 130 + 30 * max(2, len(axes))
    drawing = figure("Communication by axis in a typical step", "ms per step", "", revision, height)
    if not axes:
        return empty(drawing, "no communication was recorded")
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
    drawing = figure("Skew between ranks", "step", "ms, busiest minus least busy", revision, 250)
    if not series.steps:
        return empty(drawing, "needs two ranks that have ended a step")
    drawing.add_scatter(
        x=series.steps,
        y=series.milliseconds,
        name="skew",
        mode="lines",
        line={"color": LINE_COLORS[0], "width": 1.6},
        customdata=series.busiest,
        hovertemplate="%{y:,.2f} ms, rank %{customdata} is busiest",
    )
    return drawing.update_yaxes(rangemode="tozero")
