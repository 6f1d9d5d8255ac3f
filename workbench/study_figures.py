"""Drawing of a study: its trials with their intervals, and which knobs mattered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from tuning.spec.objectives import Aim
from workbench.figures import BARE, NEUTRAL, PHASE_COLORS, empty, figure
from workbench.study_series import ImportanceSeries, Marked, Measured, TrialSeries

TOKENS = Aim()
EXACT = PHASE_COLORS["backward"]
LOSSY = PHASE_COLORS["data"]
REPEATED = PHASE_COLORS["bubble"]
FAILED = PHASE_COLORS["communication_exposed"]
BEST = PHASE_COLORS["optimizer"]

#: More points than this are drawn small; more marks than this have their words only under the pointer.
MANY, MANY_MARKS = 150, 15

_SHORT = {"oom": "out of memory", "predicted_oom": "would not fit"}


def trials(series: TrialSeries, revision: str = "", aim: Aim = TOKENS) -> go.Figure:
    """A point with its interval for each trial, the best so far as a line, failures along the bottom."""
    drawing = figure(aim.title, "trial", aim.unit, revision, height=380)
    if not (series.exact or series.lossy or series.ruled_out or series.failed or series.running):
        return empty(drawing, "no trial has been proposed yet")
    if series.baseline is not None:
        drawing.add_hline(
            y=series.baseline,
            line={"dash": "dot", "color": NEUTRAL, "width": 1.5},
            annotation={"text": "baseline", "font": {"size": 11, "color": NEUTRAL}},
            annotation_position="right",
        )
        drawing.update_layout(margin_r=62)  # the word stands beside the points
    drawing.add_scatter(
        x=series.best_numbers,
        y=series.best_values,
        name="best so far",
        mode="lines",
        line={"color": BEST, "width": 2, "shape": "hv"},
        hoverinfo="skip",
    )
    _points(drawing, series.exact, ("exact", EXACT, "circle"), aim)
    _points(drawing, series.lossy, ("lossy compression", LOSSY, "diamond"), aim)
    _points(drawing, series.ruled_out, ("breaks a constraint", FAILED, "circle-open-dot"), aim)
    _points(drawing, series.repeated, ("measured again", REPEATED, "circle-open"), aim)
    _marks(drawing, series.failed, series.floor, {"name": "without a value", "color": FAILED, "symbol": "x"})
    running = {"name": "running", "color": BEST, "symbol": "triangle-right"}
    _marks(drawing, series.running, series.floor, running)
    drawing.update_layout(hovermode="closest").update_xaxes(
        tickformat="d", dtick=_tick(series), autorangeoptions={"clipmin": -0.5}
    )
    if not (series.exact or series.lossy or series.ruled_out or series.repeated):
        return drawing.update_yaxes(BARE, showticklabels=False, range=[-0.1, 1])
    return drawing.update_yaxes(tickformat=",~r")


def _tick(series: TrialSeries) -> int:
    numbers = [point.number for point in (*series.exact, *series.ruled_out)] + [
        mark.number for mark in series.running
    ]
    wanted = max(numbers, default=0) / 15
    if wanted <= 1:
        return 1
    power = 10.0 ** int(math.log10(wanted))
    return next(round(step * power) for step in (1, 2, 5, 10) if step * power >= wanted)


def _points(drawing: go.Figure, points: Sequence[Measured], look: tuple[str, str, str], aim: Aim) -> None:
    name, color, symbol = look
    if not points:
        return
    many = len(points) > MANY
    drawing.add_scatter(
        x=[point.number for point in points],
        y=[point.value for point in points],
        error_y={
            "array": [point.above for point in points],
            "arrayminus": [point.below for point in points],
            "thickness": 0.7 if many else 1.4,
            "width": 0 if many else 4,
        },
        name=name,
        mode="markers",
        marker={"color": color, "size": 5 if many else 9, "symbol": symbol},
        customdata=[point.words for point in points],
        hovertemplate=f"trial %{{x}}: %{{y:{aim.tick}}} {aim.unit}<br>%{{customdata}}<extra></extra>",
    )


def _marks(drawing: go.Figure, marks: Sequence[Marked], floor: float, look: dict[str, str]) -> None:
    if not marks:
        return
    many = len(marks) > MANY_MARKS
    drawing.add_scatter(
        x=[mark.number for mark in marks],
        y=[floor] * len(marks),
        name=look["name"],
        mode="markers" if many else "markers+text",
        marker={"color": look["color"], "size": 6 if many else 9, "symbol": look["symbol"]},
        text=[_SHORT.get(mark.outcome, mark.outcome.replace("_", " ")) for mark in marks],
        textposition="top center",
        textfont={"size": 11, "color": look["color"]},
        customdata=[_wrapped(mark.words) for mark in marks],
        hovertemplate="trial %{x}<br>%{customdata}<extra></extra>",
        cliponaxis=False,
    )


def _wrapped(text: str, width: int = 70) -> str:
    lines, line = [], ""
    for word in text.split():
        line, done = (f"{line} {word}".strip(), "") if len(line) + len(word) < width else (word, line)
        lines += [done] if done else []
    return "<br>".join([*lines, line])


def importance(series: ImportanceSeries, name: Callable[[str], str], revision: str = "") -> go.Figure:
    """Bars: which knobs made the difference."""
    drawing = figure("Which knobs mattered", "share of what sets the best apart, %", "", revision, height=380)
    drawing.update_layout(margin_t=40, hovermode="closest")
    if not series.names:
        return empty(drawing, _wrapped(series.reason, 40))
    drawing.add_bar(
        y=[name(key) for key in series.names],
        x=[share * 100 for share in series.shares],
        orientation="h",
        marker={"color": EXACT, "line": {"width": 0}},
        hovertemplate="%{y}: %{x:.0f} %<extra></extra>",
    )
    return drawing.update_xaxes(showgrid=True).update_yaxes(showgrid=False, autorange="reversed")
