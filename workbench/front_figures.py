"""Drawing of a pareto front: one objective against another, with what is on the front and what is not."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from tuning.spec.objectives import Aim
from workbench.figures import NEUTRAL, PHASE_COLORS, empty, figure
from workbench.front_series import FrontSeries, Place

FRONT = PHASE_COLORS["optimizer"]
RULED_OUT = PHASE_COLORS["communication_exposed"]


def front(series: FrontSeries, revision: str = "") -> go.Figure:
    """Points with intervals; those that nothing beats in both are joined, the study's best has a ring."""
    across, upwards = series.across, series.upwards
    title = f"{upwards.objective.title} and {across.objective.title.lower()}"
    drawing = figure(title, _axis(across), _axis(upwards), revision, height=380)
    if not (series.front or series.beaten or series.ruled_out):
        return empty(drawing, "no trial has both values yet")
    _points(drawing, series.beaten, "beaten in both", (NEUTRAL, "circle", "markers"), series)
    _points(drawing, series.ruled_out, "ruled out", (RULED_OUT, "x", "markers"), series)
    _points(drawing, series.front, "front", (FRONT, "circle", "markers+lines"), series)
    if series.best is not None:
        drawing.add_scatter(
            x=[series.best.x],
            y=[series.best.y],
            name="best",
            mode="markers",
            marker={"color": FRONT, "size": 17, "symbol": "circle-open", "line": {"width": 2}},
            hoverinfo="skip",
        )
    return drawing.update_layout(hovermode="closest", yaxis_tickformat=",~r", xaxis_tickformat=",~r")


def _axis(aim: Aim) -> str:
    return f"{aim.unit} ({'less' if aim.objective.lower else 'more'} is better)"


def _points(
    drawing: go.Figure, places: Sequence[Place], name: str, look: tuple[str, str, str], series: FrontSeries
) -> None:
    if not places:
        return
    color, symbol, mode = look
    across, upwards = series.across, series.upwards
    hover = f"%{{y:{upwards.tick}}} {upwards.unit}, %{{x:{across.tick}}} {across.unit}<br>%{{text}}<extra></extra>"
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
        "array": [max(0.0, above) for _, above in ends],
        "arrayminus": [max(0.0, below) for below, _ in ends],
        "thickness": 1.4,
        "width": 0,
    }
