"""Drawing of what mattered in a study: shares, effects, and small panels of how values depend on each knob.

The numbers behind the figures of what mattered in a study, made from its document by pure functions.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tuning.sensitivity.effects import KnobRow
from tuning.sensitivity.outcomes import ModelEffects, PairEffect
from tuning.sensitivity.report import Sensitivity
from tuning.spec.objectives import Aim
from workbench.figures.base import (
    BARE,
    LINE_BREAK,
    X_STANDOFF,
    Y_STANDOFF,
    axis,
    empty,
    figure,
    frame,
    in_template,
)
from workbench.figures.palette import BEST, LINE_COLORS, MEASURED, NEUTRAL, PREDICTED, WAY_COLORS
from workbench.text import words
from workbench.text.sensitivity import pair

#: More bars than this are not told apart.
SHOWN_KNOBS, SHOWN_PAIRS = 10, 3
_LEAST_PART = 0.02


class ShareSeries(NamedTuple):
    """Shares in percent by knob, None where a method says nothing of a knob; ``reason`` where there is none at all."""

    names: list[str]
    pedanova: list[float | None]
    fanova: list[float | None]
    fanova_errors: list[float | None]
    reason: str


class EffectSeries(NamedTuple):
    """Mean effects by knob, then by pair, in ``unit``. ``ways``: up, down, mixed, none, category or together."""

    names: list[str]
    effects: list[float]
    ways: list[str]
    unit: str
    score: str
    reason: str


class Panel(NamedTuple):
    """One knob: for each value what was measured there, and what the model predicts with all else equal."""

    name: str
    values: list[str]
    trials: list[int]
    failed: list[int]
    means: list[float | None]
    bests: list[float | None]
    predicted: list[float | None]


class DependenceSeries(NamedTuple):
    """``left_out``: knobs without two values to compare, and why."""

    panels: list[Panel]
    left_out: list[str]
    unit: str


def share_series(sensitivity: Sensitivity) -> ShareSeries:
    """Of PED-ANOVA and fANOVA, whichever there are."""
    fanova = sensitivity.fanova.outcome
    first, second = sensitivity.importance.values or {}, (fanova.values if fanova else None) or {}
    if not first and not second:
        return ShareSeries([], [], [], [], sensitivity.importance.reason or "not known yet")
    keys = sorted({*first, *second}, key=lambda key: -max(first.get(key, 0.0), second.get(key, 0.0)))
    keys, errors = keys[:SHOWN_KNOBS], (fanova.plus_minus if fanova else None) or {}
    return ShareSeries(
        [words.short(key) for key in keys],
        [_percent(first.get(key)) for key in keys],
        [_percent(second.get(key)) for key in keys],
        [_percent(errors.get(key)) for key in keys],
        "",
    )


def effect_series(part: ModelEffects | None, reason: str = "") -> EffectSeries:
    """Of ``value`` or ``failure`` of SHAP's outcome; None with the reason while there is none."""
    if part is None or part.knobs is None:
        return EffectSeries([], [], [], "", "", part.reason if part else reason)
    knobs, pairs = part.knobs[:SHOWN_KNOBS], pairs_that_count(part)
    name, score = part.score
    return EffectSeries(
        [words.short(row.key) for row in knobs] + [pair(row) for row in pairs],
        [row.effect for row in knobs] + [row.effect for row in pairs],
        [row.direction or "category" for row in knobs] + ["together"] * len(pairs),
        "%" if part.unit == "percent" else "percentage points",
        f"{part.trials:,} trials, {name} {score:.2f} on trials held out",
        "",
    )


def pairs_that_count(part: ModelEffects) -> list[PairEffect]:
    """The first few pairs, none that is next to nothing beside the first knob."""
    least = _LEAST_PART * max((row.effect for row in part.knobs or ()), default=0.0)
    return [row for row in (part.pairs or [])[:SHOWN_PAIRS] if row.effect > least]


def dependence_series(sensitivity: Sensitivity) -> DependenceSeries:
    """Knobs with two values or more, those with the largest differences first."""
    aim = sensitivity.aim
    compared_knobs = [row for row in sensitivity.dependence if not row.reason]
    left_out = [f"{words.short(row.key)}: {row.reason}" for row in sensitivity.dependence if row.reason]
    panels = sorted((_panel_series(row, aim) for row in compared_knobs), key=_spread, reverse=True)
    return DependenceSeries(panels, left_out, aim.unit)


def _panel_series(row: KnobRow, aim: Aim) -> Panel:
    rows = row.values
    return Panel(
        words.short(row.key),
        [words.choice(row.key, value_row.value) for value_row in rows],
        [value_row.trials for value_row in rows],
        [value_row.failed for value_row in rows],
        [aim.to_display(value_row.mean) for value_row in rows],
        [aim.to_display(value_row.best) for value_row in rows],
        [aim.to_display(value_row.predicted) for value_row in rows],
    )


def _spread(panel: Panel) -> float:
    numbers = [value for value in panel.predicted if value is not None]
    numbers = numbers if len(numbers) > 1 else [value for value in panel.means if value is not None]
    return max(numbers) - min(numbers) if numbers else 0.0


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


COLUMNS = 4
_ROW_PIXELS, _HEAD_PIXELS, _BAR_PIXELS = 210, 104, 26
#: Room above a figure whose legend has three rows where the page is narrow.
_THREE_ROWS = 104
#: Direction -> what the legend says.
_WAYS = {
    "up": "grows with the number",
    "down": "falls with the number",
    "mixed": "either way",
    "category": "a choice without order",
    "none": "no difference",
    "together": "two knobs together",
}


def shares(series: ShareSeries, revision: str = "") -> go.Figure:
    """Bars of PED-ANOVA and fANOVA side by side; fANOVA's with the standard error of its trees."""
    title = "Importance of each knob"
    drawing = figure(title, "share, %", "", revision, _height(2 * len(series.names)))
    if not series.names:
        return empty(drawing, _wrap_text(series.reason))
    bars = (
        ("PED-ANOVA: sets the best trials apart", series.pedanova, LINE_COLORS[0], None),
        ("fANOVA: explains of the spread, alone", series.fanova, LINE_COLORS[1], series.fanova_errors),
    )
    for name, values, color, errors in bars:
        if any(value is not None for value in values):
            drawing.add_bar(
                y=series.names,
                x=values,
                name=name,
                orientation="h",
                marker={"color": color, "line": {"width": 0}},
                error_x={"array": errors, "color": NEUTRAL, "thickness": 1.4} if errors else None,
                hovertemplate="%{y}: %{x:.1f} %<extra></extra>",
            )
    return _bars(drawing)


def effects(series: EffectSeries, title: str, revision: str = "") -> go.Figure:
    """Bars of mean effects, coloured by the way they go."""
    drawing = figure(title, f"mean effect, {series.unit}", "", revision, _height(len(series.names)))
    if not series.names:
        return empty(drawing, _wrap_text(series.reason))
    for way, name in _WAYS.items():
        bar_indices = [index for index, way_of_bar in enumerate(series.ways) if way_of_bar == way]
        if bar_indices:
            drawing.add_bar(
                y=[series.names[index] for index in bar_indices],
                x=[series.effects[index] for index in bar_indices],
                name=name,
                orientation="h",
                marker={"color": WAY_COLORS[way], "line": {"width": 0}},
                hovertemplate="%{y}: %{x:.2f} " + in_template(series.unit) + "<extra></extra>",
            )
    _bars(drawing).update_layout(barmode="stack", margin_t=_THREE_ROWS)
    return drawing.update_yaxes(categoryorder="array", categoryarray=series.names)


def dependence(series: DependenceSeries, revision: str = "") -> go.Figure:
    """A small panel for each knob, all with the same scale."""
    title = f"Value by knob setting, {series.unit}"
    if not series.panels:
        return empty(figure(title, "", "", revision, 240), "no knob has two measured values yet")
    count = ceil(len(series.panels) / COLUMNS)
    drawing = make_subplots(
        rows=count,
        cols=COLUMNS,
        shared_yaxes="all",
        subplot_titles=[panel.name for panel in series.panels],
        horizontal_spacing=0.03,
        vertical_spacing=min(0.3, 70 / (count * _ROW_PIXELS)),
    )
    drawing.update_layout(frame(title, revision, _HEAD_PIXELS + count * _ROW_PIXELS) | {"hovermode": "x"})
    drawing.update_layout(margin_t=_HEAD_PIXELS - 8, legend_y=1 + 30 / (count * _ROW_PIXELS))
    drawing.update_annotations(font={"size": 12.5})
    drawing.update_xaxes(axis("", X_STANDOFF) | BARE | {"type": "category"})
    drawing.update_yaxes(axis("", Y_STANDOFF) | {"tickformat": ",~r"})
    has_predictions = any(value is not None for panel in series.panels for value in panel.predicted)
    for index, panel in enumerate(series.panels):
        _panel(drawing, panel, has_predictions, (index // COLUMNS + 1, index % COLUMNS + 1))
    return drawing


def _panel(drawing: go.Figure, panel: Panel, has_predictions: bool, place: tuple[int, int]) -> None:
    counts = [
        f"{trials} trials" + (f", {failures} failed" if failures else "")
        for trials, failures in zip(panel.trials, panel.failed, strict=True)
    ]
    looks = (
        ("mean of the trials that had it", panel.means, "markers", MEASURED, "circle"),
        ("best of them", panel.bests, "markers", BEST, "triangle-up"),
        ("predicted, all else equal", panel.predicted, "lines+markers", PREDICTED, "diamond"),
    )
    for name, values, mode, color, symbol in looks if has_predictions else looks[:2]:
        drawing.add_scatter(
            x=panel.values,
            y=values,
            name=name,
            legendgroup=name,
            showlegend=place == (1, 1),
            mode=mode,
            marker={"color": color, "size": 8, "symbol": symbol},
            line={"color": color, "width": 1.5},
            customdata=counts,
            hovertemplate="%{y:,.4~g} (%{customdata})" if mode == "markers" else "%{y:,.4~g}",
            row=place[0],
            col=place[1],
        )


def _bars(drawing: go.Figure) -> go.Figure:
    drawing.update_layout(hovermode="closest", margin_t=66, showlegend=True)
    drawing.update_xaxes(showgrid=True, rangemode="tozero")
    return drawing.update_yaxes(showgrid=False, autorange="reversed")


def _height(bars: int) -> int:
    return max(240, 150 + _BAR_PIXELS * bars)


def _wrap_text(text: str, width: int = 44) -> str:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + len(word) >= width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return LINE_BREAK.join([*lines, line])
