"""Drawing of a pareto front: one objective against another, with what is on the front and what is not.

The numbers behind the figure of a pareto front, made from a study's document by pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from tuning.report.study_result import StudyResult, TrialRow
from tuning.spec.objectives import Aim, MeasuredValue
from workbench.figures.base import empty, figure, in_template
from workbench.figures.palette import BEST, FRONT, NEUTRAL, RULED_OUT


class FrontPoint(NamedTuple):
    """A trial by two objectives, with the distances to the ends of its intervals (0 without one)."""

    number: int
    x: float
    y: float
    x_ends: tuple[float, float]
    y_ends: tuple[float, float]
    words: str


class FrontSeries(NamedTuple):
    """Trials by the objective that decides (upwards) and another one (to the right)."""

    x_aim: Aim
    y_aim: Aim
    front: list[FrontPoint]
    dominated: list[FrontPoint]
    ruled_out: list[FrontPoint]
    best: FrontPoint | None
    #: What is not drawn of a long study (``workbench.figures.search.downsampling``).
    note: str = ""


def front_series(result: StudyResult) -> list[FrontSeries]:
    """One for each objective beside the one that decides; none for a study with one objective."""
    return [_series(result, aim) for aim in result.aims if aim.name != result.aim.name]


def _series(result: StudyResult, x_aim: Aim) -> FrontSeries:
    y_aim = result.aim
    on_front = {point.trial for point in result.pareto or ()}
    best = result.best.trial if result.best else None
    rows_with_place = [
        (row, place) for row in result.trials if (place := _place(row, x_aim, y_aim)) is not None
    ]
    ruled_out = {row.number for row, _ in rows_with_place if not _may_win(row)}
    front = [place for _, place in rows_with_place if place.number in on_front]
    return FrontSeries(
        x_aim,
        y_aim,
        front=sorted(front, key=lambda place: place.x),
        dominated=[place for _, place in rows_with_place if place.number not in on_front | ruled_out],
        ruled_out=[place for _, place in rows_with_place if place.number in ruled_out - on_front],
        best=next((place for place in front if place.number == best), None),
    )


def _may_win(row: TrialRow) -> bool:
    guard = row.guard.state if row.guard else None
    return not row.broken and guard not in ("violated", "undecided")


def _place(row: TrialRow, x_aim: Aim, y_aim: Aim) -> FrontPoint | None:
    x, y = (_value_with_error(row.measures.get(aim.name, MeasuredValue()), aim) for aim in (x_aim, y_aim))
    if row.value is None or x is None or y is None:
        return None
    return FrontPoint(row.number, x[0], y[0], x[1], y[1], row.label)


def _value_with_error(measure: MeasuredValue, aim: Aim) -> tuple[float, tuple[float, float]] | None:
    value, low, high = map(aim.to_unit, (measure.value, measure.low, measure.high))
    if value is None:
        return None
    return value, (value - low if low is not None else 0.0, high - value if high is not None else 0.0)


def front(series: FrontSeries, revision: str = "") -> go.Figure:
    """Points with intervals; those that nothing beats in both are joined, the study's best has a ring."""
    x_aim, y_aim = series.x_aim, series.y_aim
    title = f"{y_aim.objective.title} and {x_aim.objective.title.lower()}"
    drawing = figure(title, _axis(x_aim), _axis(y_aim), revision, height=380)
    if not (series.front or series.dominated or series.ruled_out):
        return empty(drawing, "no trial has both values yet")
    _points(drawing, series.dominated, "beaten in both", (NEUTRAL, "circle", "markers"), series)
    _points(drawing, series.ruled_out, "ruled out", (RULED_OUT, "x", "markers"), series)
    _points(drawing, series.front, "front", (FRONT, "circle", "markers+lines"), series)
    if series.best is not None:
        drawing.add_scatter(
            x=[series.best.x],
            y=[series.best.y],
            name="best",
            mode="markers",
            marker={"color": BEST, "size": 17, "symbol": "circle-open", "line": {"width": 2}},
            hoverinfo="skip",
        )
    return drawing.update_layout(hovermode="closest", yaxis_tickformat=",~r", xaxis_tickformat=",~r")


def _axis(aim: Aim) -> str:
    return f"{aim.unit} ({'less' if aim.objective.lower else 'more'} is better)"


def _points(
    drawing: go.Figure,
    places: Sequence[FrontPoint],
    name: str,
    look: tuple[str, str, str],
    series: FrontSeries,
) -> None:
    if not places:
        return
    color, symbol, mode = look
    x_aim, y_aim = series.x_aim, series.y_aim
    values = (
        f"%{{{letter}:{aim.tick}}} {in_template(aim.unit)}" for letter, aim in (("y", y_aim), ("x", x_aim))
    )
    hover = f"{', '.join(values)}<br>%{{text}}<extra></extra>"
    drawing.add_scatter(
        x=[place.x for place in places],
        y=[place.y for place in places],
        error_x=_bars([place.x_ends for place in places]),
        error_y=_bars([place.y_ends for place in places]),
        name=name,
        mode=mode,
        line={"width": 1.5, "dash": "dot"},
        marker={"color": color, "size": 9, "symbol": symbol},
        text=[f"trial {place.number}: {place.words}" for place in places],
        hovertemplate=hover,
    )


def _bars(ends: Sequence[tuple[float, float]]) -> dict[str, object]:
    """What is not known has no bar."""
    return {
        "array": [max(0.0, upper_error) for _, upper_error in ends],
        "arrayminus": [max(0.0, lower_error) for lower_error, _ in ends],
        "thickness": 1.4,
        "width": 0,
    }
