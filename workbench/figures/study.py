"""Drawing of a study: its trials with their intervals, and which knobs mattered.

The numbers behind the figures of a study, made from its document by pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import plotly.graph_objects as go

from tuning.analysis import paired_comparison
from tuning.analysis.scoring import LOSS_GUARD, is_lossy
from tuning.report.study_result import ArmRow, Measurement, StudyResult, TrialRow
from tuning.sensitivity.outcomes import Importance
from tuning.spec.objectives import Aim
from workbench.figures.base import BARE, LINE_BREAK, empty, figure, in_template, set_opacity
from workbench.figures.palette import (
    BEST,
    FAILED,
    LOSSY,
    MEASURED,
    NEUTRAL,
    REPEATED,
    RULED_OUT,
    RUNNING,
    line_look,
)
from workbench.text.words import ending_words

#: How far below the slowest trial the failed ones are drawn, as a part of the spread of values.
FLOOR_PART = 0.18


class TrialPoint(NamedTuple):
    """A trial with a value and the distances to the ends of its interval; ``words`` say what it was."""

    number: int
    value: float
    lower_error: float
    upper_error: float
    words: str


class TrialMark(NamedTuple):
    """A trial without a value: what became of it, and why."""

    number: int
    outcome: str
    words: str


class TrialSeries(NamedTuple):
    """Every trial of a study, and the best that could be believed after each of them. ``ruled_out`` have a value, but
    break a constraint.
    """

    exact: list[TrialPoint]
    lossy: list[TrialPoint]
    repeated: list[TrialPoint]
    failed: list[TrialMark]
    running: list[TrialMark]
    best_numbers: list[int]
    best_values: list[float]
    baseline: float | None
    floor: float
    ruled_out: Sequence[TrialPoint] = ()
    #: The best as it was measured again, which is what the study claims; None where it is the baseline, or nothing was.
    confirmed_value: float | None = None
    #: Whether the baseline's value, too, is of repeats.
    is_baseline_repeated: bool = False
    #: What is not drawn of a long study (``workbench.figures.search.downsampling``).
    note: str = ""


class ImportanceSeries(NamedTuple):
    """How much each knob sets the best trials apart, the largest share first; or why that is not known."""

    names: list[str]
    shares: list[float]
    reason: str


def trial_series(result: StudyResult) -> TrialSeries:
    """Every trial of a study as a figure has it."""
    aim = result.aim
    best = [(number, aim.to_display(value) or 0.0) for number, value in best_so_far(result.trials)]
    groups: dict[str, list[TrialPoint]] = {"exact": [], "lossy": [], "ruled_out": []}
    for row in result.trials:
        if row.value is not None:
            group = "ruled_out" if row.broken else "lossy" if is_lossy(row.config) else "exact"
            groups[group].append(_trial_point(row, aim))
    repeated = [
        _trial_point(replace(row, number=row.confirms or 0), aim)
        for row in result.confirmations
        if row.value is not None
    ]
    ends = [
        end
        for point in (*chain(*groups.values()), *repeated)
        for end in (point.value, point.value - point.lower_error)
    ]
    return TrialSeries(
        exact=groups["exact"],
        lossy=groups["lossy"],
        repeated=repeated,
        failed=[_trial_mark(row) for row in result.trials if row.failed],
        running=[_trial_mark(row) for row in result.trials if row.value is None and not row.failed],
        best_numbers=[number for number, _ in best],
        best_values=[value for _, value in best],
        baseline=aim.to_display(result.baseline.value) if result.baseline else None,
        floor=_floor([end for end in ends if end]),
        ruled_out=groups["ruled_out"],
        confirmed_value=_confirmed_best(result),
        is_baseline_repeated=result.confirmation_rounds is not None
        and any(arm.is_baseline for arm in result.confirmation_rounds.arms),
    )


def _confirmed_best(result: StudyResult) -> float | None:
    best, baseline = result.best, result.baseline
    if result.confirmation_rounds is None or best is None or (baseline and best.config == baseline.config):
        return None
    return result.aim.to_display(best.value)


def best_so_far(rows: Sequence[TrialRow]) -> list[tuple[int, float]]:
    """The value of the best up to each trial, of those that may win: a lossy one only if the guard allows it. In a live
    study it may fall, where the machine was slower when a better one was measured.
    """
    best: list[tuple[int, float]] = []
    top: TrialRow | None = None
    for row in rows:
        if row.value is not None and (top is None or row.ranking > top.ranking) and may_win(row):
            top = row
        if top is not None:
            best.append((row.number, top.value or 0.0))
    return best


def may_win(row: TrialRow) -> bool:
    """Whether a measured trial can be the best one."""
    if row.broken:
        return False
    if is_lossy(row.config):
        return row.constraints.get(LOSS_GUARD, 1.0) <= 0
    return all(violation <= 0 for violation in row.constraints.values())


class ArmCurve(NamedTuple):
    """How an arm stood beside the yardstick after each round: per cent, and the ends of the interval where it has some;
    ``leads``: it is the fastest.
    """

    name: str
    rounds: list[int]
    percent: list[float]
    low: list[float | None]
    high: list[float | None]
    leads: bool


def arm_curves(result: StudyResult) -> list[ArmCurve]:
    """Of every arm that was measured again, beside the baseline (else the arm that the others stand beside)."""
    rounds = result.confirmation_rounds
    if rounds is None:
        return []
    logs = {arm.trial: _logs(arm) for arm in rounds.arms}
    yardstick = logs.get(rounds.beside, {}) if rounds.beside is not None else {}
    return [
        _course(f"trial {arm.trial}", logs[arm.trial], yardstick, rounds.error, arm.trial == rounds.winner)
        for arm in rounds.arms
        if arm.trial != rounds.beside
    ]


def _logs(arm: ArmRow) -> dict[int, float]:
    numbered_rows = enumerate(arm.rounds)
    return {
        place if row.round is None else row.round: math.log(row.value)
        for place, row in numbered_rows
        if row.value
    }


def _course(
    name: str, arm: Mapping[int, float], yardstick: Mapping[int, float], error: float, leads: bool
) -> ArmCurve:
    places = sorted(arm.keys() & yardstick.keys())
    after_each = paired_comparison.leads(
        [arm[number] for number in places], [yardstick[number] for number in places], error
    )
    intervals = [lead.interval for lead in after_each]
    rows = [[None if end is None else 100 * (end - 1) for end in interval] for interval in intervals]
    return ArmCurve(
        name,
        [place + 1 for place in places],
        [100 * (interval.value - 1) for interval in intervals],
        [low for _, low, _ in rows],
        [high for *_, high in rows],
        leads,
    )


def _floor(values: Sequence[float]) -> float:
    if not values:
        return 0.0
    spread = max(values) - min(values)
    return max(0.0, min(values) - FLOOR_PART * (spread or max(values)))


def _trial_point(row: Measurement, aim: Aim) -> TrialPoint:
    value = aim.to_display(row.value) or 0.0
    low, high = aim.bounds(row.low, row.high)
    lower_error = value - low if low is not None else 0.0
    upper_error = high - value if high is not None else 0.0
    return TrialPoint(row.number, value, max(0.0, lower_error), max(0.0, upper_error), row.label)


def _trial_mark(row: Measurement) -> TrialMark:
    return TrialMark(row.number, row.outcome, row.reason or row.label)


def importance_series(importance: Importance | None) -> ImportanceSeries:
    """From ``importance`` of a study's result."""
    values = importance.values if importance else None
    if not values:
        reason = importance.reason if importance else "is worked out when a study ends"
        return ImportanceSeries([], [], reason or "not known yet")
    ranked = sorted(values.items(), key=lambda item: item[1], reverse=True)
    return ImportanceSeries([name for name, _ in ranked], [float(share) for _, share in ranked], "")


def confirmation(series: Sequence[ArmCurve], margin: float, title: str, revision: str = "") -> go.Figure:
    """Each arm beside the yardstick as rounds went on, the interval of the fastest, and the band of what is equal."""
    drawing = figure("Told apart, round by round", "round", title, revision, height=260)
    if margin:
        band = {"fillcolor": NEUTRAL, "opacity": 0.15, "line_width": 0}
        drawing.add_hrect(y0=100 * (1 / (1 + margin) - 1), y1=100 * margin, **band)
    drawing.add_hline(y=0, line={"dash": "dot", "color": NEUTRAL, "width": 1.5})
    for place, course in enumerate(series):
        look = line_look(place)
        color = BEST if course.leads else look.color
        if course.leads:
            _interval_band(drawing, course, color)
        drawing.add_scatter(
            x=course.rounds,
            y=course.percent,
            name=course.name + (", the fastest" if course.leads else ""),
            mode="lines+markers",
            line={"color": color, "dash": look.dash, "width": 2.5 if course.leads else 1.2},
            marker={"size": 8, "symbol": "diamond"} if course.leads else {"size": 4},
        )
    return drawing.update_xaxes(tickformat="d").update_yaxes(tickformat="+~g")


def _interval_band(drawing: go.Figure, course: ArmCurve, color: str) -> None:
    rounds = [row for row in zip(course.rounds, course.low, course.high, strict=True) if None not in row]
    for ends, fill in (([low for _, low, _ in rounds], None), ([high for *_, high in rounds], "tonexty")):
        drawing.add_scatter(
            x=[place for place, *_ in rounds],
            y=ends,
            mode="lines",
            line={"width": 0},
            fill=fill,
            fillcolor=set_opacity(color, 0.2),
            showlegend=False,
            hoverinfo="skip",
        )


TOKENS = Aim()

#: More points than this are drawn small; more marks than this have their words only under the pointer.
MANY, MANY_MARKS = 150, 15


def trials(series: TrialSeries, revision: str = "", aim: Aim = TOKENS) -> go.Figure:
    """A point with its interval for each trial, the best so far as a line, failures along the bottom."""
    drawing = figure(aim.title, "trial", aim.unit, revision, height=380)
    if not (series.exact or series.lossy or series.ruled_out or series.failed or series.running):
        return empty(drawing, "no trial has been proposed yet")
    repeated_text = f",{LINE_BREAK}measured again" if series.is_baseline_repeated else ""
    lines = (
        (f"baseline{repeated_text}", series.baseline, NEUTRAL),
        (f"best{repeated_text}", series.confirmed_value, BEST),
    )
    levels = sorted((value, name, color) for name, value, color in lines if value is not None)
    for place, (value, name, color) in enumerate(levels):
        # Of two the upper words stand above their line and the lower ones below, or near values would overprint them.
        anchor = "middle" if len(levels) == 1 else ("top", "bottom")[place]
        drawing.add_hline(
            y=value,
            line={"dash": "dot", "color": color, "width": 1.5},
            annotation={"text": name, "font": {"size": 11}, "align": "left", "yanchor": anchor},
            annotation_position="right",
        )
        drawing.update_layout(margin_r=106 if repeated_text else 62)  # the words stand beside the points
    drawing.add_scatter(
        x=series.best_numbers,
        y=series.best_values,
        name="best of the search so far",
        mode="lines",
        line={"color": BEST, "width": 2, "shape": "hv"},
        hoverinfo="skip",
    )
    _points(drawing, series.exact, ("exact", MEASURED, "circle"), aim)
    _points(drawing, series.lossy, ("lossy compression", LOSSY, "diamond"), aim)
    _points(drawing, series.ruled_out, ("breaks a constraint", RULED_OUT, "circle-open-dot"), aim)
    _points(drawing, series.repeated, ("measured again", REPEATED, "circle-open"), aim)
    _marks(drawing, series.failed, series.floor, {"name": "without a value", "color": FAILED, "symbol": "x"})
    running = {"name": "running", "color": RUNNING, "symbol": "triangle-right"}
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
    smallest_step = max(numbers, default=0) / 15
    if smallest_step <= 1:
        return 1
    power = 10.0 ** int(math.log10(smallest_step))
    return next(round(step * power) for step in (1, 2, 5, 10) if step * power >= smallest_step)


def _points(drawing: go.Figure, points: Sequence[TrialPoint], look: tuple[str, str, str], aim: Aim) -> None:
    name, color, symbol = look
    if not points:
        return
    is_crowded = len(points) > MANY
    drawing.add_scatter(
        x=[point.number for point in points],
        y=[point.value for point in points],
        error_y={
            "array": [point.upper_error for point in points],
            "arrayminus": [point.lower_error for point in points],
            "thickness": 0.7 if is_crowded else 1.4,
            "width": 0 if is_crowded else 4,
        },
        name=name,
        mode="markers",
        marker={"color": color, "size": 5 if is_crowded else 9, "symbol": symbol},
        customdata=[point.words for point in points],
        hovertemplate=f"trial %{{x}}: %{{y:{aim.tick}}} {in_template(aim.unit)}<br>%{{customdata}}<extra></extra>",
    )


def _marks(drawing: go.Figure, marks: Sequence[TrialMark], floor: float, look: dict[str, str]) -> None:
    if not marks:
        return
    is_crowded = len(marks) > MANY_MARKS
    drawing.add_scatter(
        x=[mark.number for mark in marks],
        y=[floor] * len(marks),
        name=look["name"],
        mode="markers" if is_crowded else "markers+text",
        marker={"color": look["color"], "size": 6 if is_crowded else 9, "symbol": look["symbol"]},
        text=[ending_words(mark.outcome) for mark in marks],
        textposition="top center",
        textfont={"size": 11},
        customdata=[_wrap_text(mark.words) for mark in marks],
        hovertemplate="trial %{x}<br>%{customdata}<extra></extra>",
        cliponaxis=False,
    )


def _wrap_text(text: str, width: int = 70) -> str:
    lines, line = [], ""
    for word in text.split():
        line, full_line = (f"{line} {word}".strip(), "") if len(line) + len(word) < width else (word, line)
        lines += [full_line] if full_line else []
    return LINE_BREAK.join([*lines, line])


def importance(series: ImportanceSeries, name: Callable[[str], str], revision: str = "") -> go.Figure:
    """Bars: which knobs made the difference."""
    drawing = figure("Which knobs mattered", "share, %", "", revision, height=380)
    drawing.update_layout(margin_t=40, hovermode="closest")
    if not series.names:
        return empty(drawing, _wrap_text(series.reason, 40))
    drawing.add_bar(
        y=[name(key) for key in series.names],
        x=[share * 100 for share in series.shares],
        orientation="h",
        marker={"color": MEASURED, "line": {"width": 0}},
        hovertemplate="%{y}: %{x:.0f} %<extra></extra>",
    )
    return drawing.update_xaxes(showgrid=True).update_yaxes(showgrid=False, autorange="reversed")
