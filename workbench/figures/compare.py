"""Runs side by side: parts of a step, collectives, loss against steps, tokens or seconds, and all knobs of a study.

Runs are told apart by their letters, and each has the same colour in all figures.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import plotly.graph_objects as go

from tuning.report.study_result import TrialRow
from tuning.spec.objectives import Aim, text
from workbench.analysis.compare import CollectiveRow, LossCurve, Row
from workbench.figures.base import (
    PHASE_NAMES,
    empty,
    figure,
    in_template,
    panel_place,
    panels,
    panels_in_a_row,
)
from workbench.figures.palette import NEUTRAL, PHASE_COLORS, line_look
from workbench.figures.steps import line
from workbench.text import words

Against = Literal["steps", "tokens", "seconds"]
AGAINST: tuple[Against, ...] = ("steps", "tokens", "seconds")
_AXIS = {"steps": "step", "tokens": "tokens", "seconds": "seconds since the first step began"}
#: Collectives beyond these are too short to be seen beside the longest.
SHOWN_COLLECTIVES = 8
#: Lines of a study, of the best and of the others in even steps: more cannot be told apart.
SHOWN_TRIALS = 120
#: Panels of a study's knobs.
SHOWN_KNOBS = 6
_FAINT, _STRONG = 0.25, 3.5


def colors(letters: Sequence[str]) -> dict[str, str]:
    """A run's colour."""
    return {letter: line_look(number).color for number, letter in enumerate(letters)}


def phases(rows: Sequence[Row], letters: Sequence[str]) -> go.Figure:
    """The mean step of each run as one bar, of the same parts in the same order."""
    drawing = figure(
        "Where a step's time goes", "ms per step", "", "-".join(letters), 120 + 44 * len(letters)
    )
    if not rows:
        return empty(drawing, "no step was measured")
    for row in rows:
        drawing.add_bar(
            y=list(letters),
            x=[None if value is None else value * 1e3 for value in row.seconds],
            name=PHASE_NAMES.get(row.name, "between steps"),
            orientation="h",
            marker=_part_look(row.name),
            hovertemplate="%{x:,.1f} ms",
        )
    drawing.update_yaxes(autorange="reversed", type="category").update_xaxes(
        rangemode="tozero", showgrid=True
    )
    return drawing.update_layout(barmode="stack", hovermode="y unified", margin_t=98)


def _part_look(name: str) -> dict[str, Any]:
    """Of a phase its colour; what lies between two steps is striped, for the rest of a step is grey, too."""
    if name in PHASE_COLORS:
        return {"color": PHASE_COLORS[name], "line": {"width": 0}}
    return {"color": NEUTRAL, "line": {"width": 0}, "pattern": {"shape": "/", "solidity": 0.4}}


def collectives(rows: Sequence[CollectiveRow], letters: Sequence[str]) -> go.Figure:
    """What the main thread waited for each collective, and its bytes, the runs beside each other."""
    shown_rows = rows[:SHOWN_COLLECTIVES]
    labels = [f"{row.operation} · {row.axis}" for row in shown_rows]
    height = 130 + 16 * max(4, len(labels) * len(letters))
    drawing = panels(
        "Collectives, per step and rank",
        [("exposed, ms per step", ""), ("MB per step", "")],
        "-".join(letters),
        height,
    )
    drawing.update_yaxes(matches="y", showticklabels=False, row=1, col=2)
    if not shown_rows:
        return empty(drawing, "no collective was recorded")
    for place, (letter, color) in enumerate(colors(letters).items()):
        exposed_milliseconds = [_times(row.exposed_seconds[place], 1e3) for row in shown_rows]
        for column, values in enumerate(
            (exposed_milliseconds, [_times(row.bytes[place], 1e-6) for row in shown_rows])
        ):
            drawing.add_bar(
                y=labels,
                x=values,
                name=letter,
                legendgroup=letter,
                orientation="h",
                marker={"color": color, "line": {"width": 0}},
                showlegend=column == 0,
                hovertemplate="%{x:,.3g} " + ("ms", "MB")[column],
                **panel_place(column, 2),
            )
    drawing.update_xaxes(rangemode="tozero", showgrid=True)
    drawing.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    return drawing.update_layout(barmode="group", hovermode="y unified")


def losses(curves: Sequence[LossCurve], letters: Mapping[str, str], against: Against) -> go.Figure:
    """The loss of each run against steps, tokens or seconds."""
    title = f"Training loss against {against}"
    drawing = figure(title, _AXIS[against], "loss, nats per token", f"{against}-{'-'.join(letters)}")
    shades, has_curves = colors(list(letters.values())), False
    for curve in curves:
        x_values = np.array([np.nan if x is None else x for x in getattr(curve, against)], float)
        loss = np.array([np.nan if y is None else y for y in curve.losses], float)
        mask = ~(np.isnan(x_values) | np.isnan(loss))
        if not mask.any():
            continue
        has_curves, letter = True, letters[curve.run]
        thinned = line(letter, x_values[mask], loss[mask])
        look = {"color": shades[letter], "width": 2}
        drawing.add_scatter(
            x=thinned.x, y=thinned.y, name=letter, mode="lines", line=look, hovertemplate="%{y:.4f}"
        )
    return drawing if has_curves else empty(drawing, "no loss is known")


class Axis(NamedTuple):
    """A knob as an upright line: its values in order from the bottom, as they are written."""

    key: str
    title: str
    values: list[Any]
    labels: list[str]

    def place(self, value: Any) -> float:
        """Where a value stands, from 0 to 1."""
        return self.values.index(value) / max(1, len(self.values) - 1)


def knob_axes(trials: Sequence[TrialRow]) -> list[Axis]:
    """The knobs that have more than one value among measured trials."""
    measured_trials = [row for row in trials if row.value is not None]
    axes = []
    for key in dict.fromkeys(key for row in measured_trials for key in row.config):
        values = _in_order(
            {_key(row.config.get(key)): row.config.get(key) for row in measured_trials}.values()
        )
        if len(values) > 1:
            axes.append(Axis(key, words.short(key), values, [words.choice(key, value) for value in values]))
    return axes


def parallel(trials: Sequence[TrialRow], aim: Aim, letters: Mapping[str, str], study: str) -> go.Figure:
    """Parallel coordinates: a line a trial across its knobs to its value; the compared runs are strong."""
    axes = knob_axes(trials)
    measured_trials = [row for row in trials if row.value is not None and row.value > 0]
    drawing = figure(f"All trials of {study}", "", "", study, 420)
    if not axes or not measured_trials:
        return empty(drawing, "no two measured trials differ in a knob")
    values = [aim.to_display(row.value) or 0.0 for row in measured_trials]
    low, high = min(values), max(values)
    ranked = sorted(zip(measured_trials, values, strict=True), key=lambda pair: pair[0].value or 0.0)
    for row, value in _select_trials(ranked, set(letters)):
        end = (value - low) / (high - low) if high > low else 0.5
        _trial_line(
            drawing, row, [axis.place(row.config.get(axis.key)) for axis in axes] + [end], value, aim, letters
        )
    for place, axis in enumerate(axes):
        _upright(
            drawing,
            place,
            [(axis.place(value), label) for value, label in zip(axis.values, axis.labels, strict=True)],
        )
    _upright(drawing, len(axes), [(0.0, text(low)), (1.0, text(high))])
    titles = [axis.title for axis in axes] + [aim.unit]
    drawing.update_xaxes(tickvals=list(range(len(titles))), ticktext=titles, range=[-0.15, len(axes) + 0.3])
    drawing.update_yaxes(visible=False, range=[-0.04, 1.12])
    return drawing.update_layout(hovermode="closest", margin_t=62)


def _trial_line(
    drawing: go.Figure, row: TrialRow, places: list[float], value: float, aim: Aim, letters: Mapping[str, str]
) -> None:
    letter = letters.get(row.run or "")
    color = colors(list(letters.values()))[letter] if letter else NEUTRAL
    drawing.add_scatter(
        x=list(range(len(places))),
        y=places,
        mode="lines",
        name=f"{letter}: trial {row.number}" if letter else f"trial {row.number}",
        showlegend=letter is not None,
        legendrank=1000 + list(letters.values()).index(letter) if letter else None,
        opacity=1.0 if letter else _FAINT,
        line={"color": color, "width": _STRONG if letter else 1.2},
        hovertemplate=f"trial {row.number}: {text(value)} {in_template(aim.unit)}<extra></extra>",
    )


def _upright(drawing: go.Figure, x: int, labels: Sequence[tuple[float, str]]) -> None:
    drawing.add_shape(type="line", x0=x, x1=x, y0=0, y1=1, line={"color": NEUTRAL, "width": 1})
    for height, label in labels:
        drawing.add_annotation(
            x=x,
            y=height,
            text=label,
            showarrow=False,
            xanchor="left",
            xshift=5,
            yanchor="bottom",  # above the lines that meet here
            yshift=2,
            font={"size": 11},
        )


def slices(trials: Sequence[TrialRow], aim: Aim, letters: Mapping[str, str], study: str) -> go.Figure:
    """A panel for each knob, first those in which the compared runs differ: every measured trial at its value of the
    knob; the compared runs in their colours.
    """
    labelled_trials = [row for row in trials if row.run in letters]
    axes = sorted(
        knob_axes(trials),
        key=lambda axis: len({_key(row.config.get(axis.key)) for row in labelled_trials}) < 2,
    )
    axes = axes[:SHOWN_KNOBS]
    measured_trials = [row for row in trials if row.value is not None]
    columns = panels_in_a_row(len(axes))
    labels = [(axis.title, aim.unit if place % columns == 0 else "") for place, axis in enumerate(axes)]
    drawing = panels(f"Knob by knob, {study}", labels or [("", "")], study, 260)
    if not axes:
        return empty(drawing, "no two measured trials differ in a knob")
    shades = colors(list(letters.values()))
    groups = {"": [row for row in measured_trials if row.run not in letters]} | {
        letter: [row for row in measured_trials if row.run == run] for run, letter in letters.items()
    }
    for (letter, rows), (place, axis) in itertools.product(groups.items(), enumerate(axes)):
        if rows:
            drawing.add_scatter(
                x=[axis.labels[axis.values.index(row.config.get(axis.key))] for row in rows],
                y=[aim.to_display(row.value) for row in rows],
                mode="markers",
                name=letter or "others",
                legendgroup=letter or "others",
                showlegend=place == 0,
                marker={
                    "color": shades.get(letter, NEUTRAL),
                    "size": 10 if letter else 6,
                    "opacity": 1 if letter else 0.5,
                },
                text=[f"trial {row.number}" for row in rows],
                hovertemplate="%{text}: %{y:,.4g}<extra></extra>",
                **panel_place(place, len(axes)),
            )
    for place, axis in enumerate(axes):
        drawing.update_xaxes(
            type="category", categoryarray=axis.labels, categoryorder="array", **panel_place(place, len(axes))
        )
    return drawing.update_layout(hovermode="closest")


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _select_trials(ranked: Sequence[tuple[TrialRow, float]], runs: set[str]) -> list[tuple[TrialRow, float]]:
    """The compared ones last, so that they lie on top; of very many others an even choice, the best among them."""
    labelled = [trial_and_value for trial_and_value in ranked if trial_and_value[0].run in runs]
    unlabelled = [trial_and_value for trial_and_value in ranked if trial_and_value[0].run not in runs]
    step = max(1, -(-len(unlabelled) // SHOWN_TRIALS))
    return unlabelled[::-1][::step][::-1] + labelled


def _key(value: Any) -> str:
    return f"{type(value).__name__}:{value}"


def _in_order(values: Any) -> list[Any]:
    """Numbers by size; everything else as it came, and nothing first."""
    distinct = list(values)
    plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in distinct)
    return sorted(distinct) if plain else sorted(distinct, key=lambda value: value is not None)
