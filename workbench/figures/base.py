"""Drawing: each function turns the numbers of one series into a Plotly figure. No numbers are made here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io as plotly_io
from plotly.subplots import make_subplots

from profilers.records.schema import PHASES, Panel
from workbench.figures.palette import (
    HIDDEN_COMMUNICATION,
    MEASURED,
    NEUTRAL,
    PHASE_COLORS,
    LineLook,
    line_look,
)
from workbench.figures.steps import (
    CollectiveSeries,
    Line,
    LossSeries,
    Mark,
    PhaseSeries,
    RankSeries,
)
from workbench.text import words

PHASE_NAMES = {phase: phase for phase in PHASES} | {"communication_exposed": "exposed communication"}
SINCE_START = "seconds since the start"
HEIGHT = 300
FEW_STEPS = 10
BARE = {"showgrid": False, "zeroline": False}
X_STANDOFF, Y_STANDOFF = 14, 18
PANELS_IN_A_ROW = 3
#: In a text of a figure: a new line, and where bold letters begin and end. All else is shown as it is written.
LINE_BREAK = "\n"
_BOLD, _PLAIN = "\ue000", "\ue001"
#: Attributes that the house writes, in Plotly's own markup; what a user named goes into them by ``in_template``.
_TEMPLATES = frozenset({"hovertemplate", "texttemplate"})
#: Layouts of panels that are drawn again and again.
_LAYOUTS = 64
# The page has its own colours and fonts. Plotly would copy its template, a hundred settings, into each figure.
plotly_io.templates.default = None


def figure(title: str, x: str, y: str, revision: str = "", height: int = HEIGHT) -> go.Figure:
    """An empty figure in the house style; ``revision`` keeps a viewer's zoom while the data grows."""
    axes = {"xaxis": axis(x, X_STANDOFF) | BARE, "yaxis": axis(y, Y_STANDOFF)}
    return go.Figure(layout=frame(title, revision, height) | axes)


def bold(text: str) -> str:
    """Text of a figure in bold letters."""
    return f"{_BOLD}{text}{_PLAIN}"


def in_template(text: str) -> str:
    """A name or a unit as part of a hover template, where it is shown as it is written."""
    return _shown(text).replace("%{", "%&#123;")


def as_written(value: Any, name: str = "") -> Any:
    """What a figure says, for the browser: Plotly takes ``<b>``, ``<br>`` and ``<a href>`` in titles, names, labels and
    hover texts for markup, and these hold names of runs, knobs and hosts, which people choose.
    """
    if isinstance(value, str):
        return value if name in _TEMPLATES else _shown(value)
    if isinstance(value, dict):
        return {key: as_written(part, key) for key, part in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "OU":
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [as_written(part, name) for part in value]
    return value


def _shown(text: str) -> str:
    text = escape(words.plain_commands(text), quote=False).replace(LINE_BREAK, "<br>")
    return text.replace(_BOLD, "<b>").replace(_PLAIN, "</b>")


def panels(title: str, labels: Sequence[tuple[str, str]], revision: str, height: int) -> go.Figure:
    """As :func:`figure`, with several panels; each has the titles of its two axes. At most ``PANELS_IN_A_ROW`` stand
    side by side, so that titles have room on a narrow page; each row has the ``height``. See ``panel_place``.
    """
    return go.Figure(_empty_panels(title, tuple(labels), revision, height))


@lru_cache(maxsize=_LAYOUTS)
def _empty_panels(title: str, labels: tuple[tuple[str, str], ...], revision: str, height: int) -> go.Figure:
    rows = -(-len(labels) // panels_in_a_row(len(labels)))
    grid = _grid(len(labels))
    layout = grid.layout.to_plotly_json() | frame(title, revision, height * rows)
    for number, (x, y) in enumerate(labels):
        suffix = number + 1 if number else ""
        layout[f"xaxis{suffix}"] |= axis(x, X_STANDOFF) | BARE
        layout[f"yaxis{suffix}"] |= axis(y, Y_STANDOFF)
    drawing = go.Figure(grid)
    drawing.layout = layout
    return drawing


@cache
def _grid(count: int) -> go.Figure:
    """So many empty panels: Plotly takes longer to lay them out, and to change what it has laid out, than to draw."""
    columns = panels_in_a_row(count)
    rows = -(-count // columns)
    cells: list[dict[str, int] | None] = [{} if cell < count else None for cell in range(rows * columns)]
    return make_subplots(
        rows,
        columns,
        specs=[cells[start : start + columns] for start in range(0, len(cells), columns)],
        horizontal_spacing=0.28 / columns,
        vertical_spacing=0.4 / rows,
    )


def panels_in_a_row(count: int) -> int:
    """So many that rows are filled as evenly as they can be: four panels are two rows of two."""
    rows = -(-count // PANELS_IN_A_ROW)
    return -(-count // rows) if rows else 1


def panel_place(number: int, count: int) -> dict[str, int]:
    """Row and column, from 1 on, of the panel of that number, from 0 on, of so many."""
    row, column = divmod(number, panels_in_a_row(count))
    return {"row": row + 1, "col": column + 1}


def axis(title: str, standoff: int) -> dict[str, Any]:
    """An axis that makes room for its own labels."""
    return {"automargin": True, "separatethousands": True, "title": {"text": title, "standoff": standoff}}


def frame(title: str, revision: str, height: int) -> dict[str, Any]:
    """Margins, title and legend that never lie on each other: the title above, the legend below it."""
    place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "top", "yref": "container"}
    legend_place = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    return {
        "title": {"text": title, "font": {"size": 15}, "pad": {"t": 8}} | place,
        "legend": {"traceorder": "normal", "itemwidth": 30} | legend_place,
        "margin": {"l": 8, "r": 12, "t": 62, "b": 8},
        "height": height,
        "hovermode": "x unified",
        "uirevision": revision or title,
        "bargap": 0.12,
    }


def empty(drawing: go.Figure, text: str) -> go.Figure:
    """The same frame with one line that says why there is nothing in it."""
    drawing.add_annotation(
        text=text,
        x=0.5,
        y=0.5,
        xref="paper",
        yref="paper",
        showarrow=False,
        font={"size": 14},  # in the page's own colour: no grey is read well on both backgrounds
    )
    blank = BARE | {"showticklabels": False, "range": [0, 1], "title": {"text": ""}}
    return drawing.update_xaxes(blank).update_yaxes(blank)


def phases(series: PhaseSeries, revision: str = "") -> go.Figure:
    """Stacked bars: where the time of each step went."""
    x_title = "step" if series.steps_per_bar == 1 else f"step (a bar is the mean of {series.steps_per_bar})"
    drawing = figure(f"Step time by phase — {series.rank}", x_title, "ms per step", revision, height=376)
    if not series.steps:
        return empty(drawing, "no step has ended yet")
    drawing.update_layout(margin_t=98)  # its legend has three rows where the page is narrow
    drawing.add_traces(
        [
            {
                "type": "bar",
                "x": numbers(series.steps),
                "y": numbers(values),
                "name": PHASE_NAMES[phase],
                "marker": {"color": PHASE_COLORS[phase], "line": {"width": 0}},
                "hovertemplate": "%{y:,.1f} ms",
            }
            for phase, values in series.milliseconds.items()
        ]
    )
    if any(series.undivided):
        drawing.add_bar(
            x=series.steps,
            y=series.undivided,
            name="not recorded in detail",
            marker={
                "color": NEUTRAL,
                "opacity": 0.4,
                "line_width": 0,
                "pattern": {"shape": "/", "solidity": 0.4},
            },
            hovertemplate="%{y:,.1f} ms",
        )
    _warmup(drawing, series.warmup_until, series.steps[0], 0.5)
    return _whole_steps(drawing, len(series.steps)).update_layout(barmode="stack")


def ranks(series: RankSeries, revision: str = "") -> go.Figure:
    """Lines: how evenly the ranks work."""
    drawing = figure("Step time by rank", "step", "ms per step", revision)
    if not series.lines:
        return empty(drawing, "no step has ended yet")
    draw_lines(drawing, series.lines, "%{y:,.1f} ms")
    _warmup(drawing, series.warmup_until, 0, 0)
    return _whole_steps(drawing, len(series.lines[0].x)).update_yaxes(rangemode="tozero")


def add_marks(drawing: go.Figure, marks: Sequence[Mark]) -> go.Figure:
    """A line where the configuration was changed; hovering over its head says how."""
    for mark in marks:
        drawing.add_vline(x=mark.step - 0.5, line={"dash": "dot", "color": NEUTRAL, "width": 1.5})
        drawing.add_annotation(
            x=mark.step - 0.5,
            y=1,
            yref="paper",
            text="◆",
            hovertext=f"from step {mark.step:,} on: {mark.text}",
            showarrow=False,
            font={"size": 12, "color": NEUTRAL},
        )
    return drawing


def loss(series: LossSeries, revision: str = "") -> go.Figure:
    """The loss curve, and the validation loss as a level."""
    drawing = figure("Training loss", "step", "loss, nats per token", revision)
    if not series.steps:
        return empty(drawing, "no loss yet")
    drawing.add_scatter(
        x=numbers(series.steps),
        y=numbers(series.losses),
        name="training",
        mode="lines",
        line={"color": MEASURED, "width": 2},
        hovertemplate="%{y:.4f}",
    )
    if series.validation is not None:
        drawing.add_hline(
            y=series.validation,
            line={"dash": "dash", "color": NEUTRAL, "width": 1.5},
            annotation_text=f"validation {words.loss(series.validation)}",
            annotation_position="top left",
        )
    return _whole_steps(drawing, len(series.steps)).update_layout(showlegend=False, margin_t=40)


def collectives(series: CollectiveSeries, revision: str = "") -> go.Figure:
    """Three rows of bars side by side: time, bytes and bus bandwidth of each operation and axis."""
    labels = [("ms per step", ""), ("MB per step", ""), ("bus bandwidth, GB/s", "")]
    height = 130 + 34 * max(2, len(series.labels))
    drawing = panels("Collectives, per step and rank", labels, revision, height)
    drawing.update_xaxes(rangemode="tozero", showgrid=True).update_yaxes(showgrid=False)
    for column in (2, 3):
        drawing.update_yaxes(matches="y", showticklabels=False, row=1, col=column)
    if not series.labels:
        return empty(drawing, "no collective yet")
    exposed = (series.exposed_milliseconds, PHASE_COLORS["communication_exposed"], "ms")
    hidden = (series.hidden_milliseconds, HIDDEN_COMMUNICATION, "ms")
    _bars(drawing, series.labels, 1, {"exposed": exposed, "hidden behind compute": hidden})
    _bars(drawing, series.labels, 2, {"bytes": (series.megabytes, NEUTRAL, "MB")})
    _bars(drawing, series.labels, 3, {"bandwidth": (series.bus_gigabytes_per_second, NEUTRAL, "GB/s")})
    drawing.update_yaxes(autorange="reversed", automargin=True)
    return drawing.update_layout(barmode="stack", hovermode="y unified")


def _bars(
    drawing: go.Figure,
    labels: Sequence[str],
    column: int,
    bars: Mapping[str, tuple[Sequence[float | None], str, str]],
) -> None:
    """Horizontal bars of one panel; each name has its values, colour and unit."""
    for name, (values, color, unit) in bars.items():
        drawing.add_bar(
            y=labels,
            x=values,
            name=name,
            orientation="h",
            marker={"color": color, "line": {"width": 0}},
            showlegend=column == 1,
            hovertemplate="%{x:,.3g} " + unit,
            row=1,
            col=column,
        )


def draw_panels(
    title: str,
    panel_looks: Sequence[Panel],
    series: Sequence[Sequence[Line]],
    revision: str = "",
    wholes: Sequence[float | None] = (),
) -> go.Figure:
    """A panel for each reading, with its lines; ``wholes`` say of how much, in the panels' units."""
    totals = wholes or [None] * len(panel_looks)
    units = [
        panel.unit if total is None else f"{panel.unit} of {total:,.0f}"
        for panel, total in zip(panel_looks, totals, strict=True)
    ]
    labels = [(SINCE_START, f"{panel.title}, {unit}") for panel, unit in zip(panel_looks, units, strict=True)]
    drawing = panels(title, labels, revision, 250).update_yaxes(rangemode="tozero")
    drawing.update_xaxes(rangemode="nonnegative")
    if not any(trace.x for lines in series for trace in lines):
        return empty(drawing, "no reading yet")
    for number, (panel, lines) in enumerate(zip(panel_looks, series, strict=True)):
        place = panel_place(number, len(panel_looks))
        draw_lines(drawing, lines, f"%{{y:{panel.digits}}} {panel.unit}", place)
        if panel.axis is not None:
            drawing.update_yaxes(range=panel.axis, **place)
    return drawing


def name_panels(panels: Iterable[Panel], subject: str) -> str:
    """What the panels show, for readers of the screen."""
    *first, last = (panel.title for panel in panels)
    text = f"{', '.join(first)} and {last} of {subject}" if first else f"{last} of {subject}"
    return text[0].upper() + text[1:]


def numbers(values: Sequence[float | None]) -> np.ndarray[Any, Any] | list[float]:
    """Values as Plotly takes them in at once, where of a list it looks at each; a gap where there is none."""
    # An empty array is the one that Plotly leaves as it is in what is meant for JSON.
    return np.array(values, dtype=np.float64) if len(values) else []


def set_opacity(color: str, opacity: float = 0.18) -> str:
    """A "#rrggbb" that lets through what is behind it."""
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def draw_lines(
    drawing: go.Figure,
    lines: Sequence[Line],
    hover: str,
    place: Mapping[str, int] | None = None,
    first: int = 0,
) -> None:
    """Traces in the house's colours. Of several panels, each at its ``place``, a name is in the legend once: by the
    first trace that has points, for Plotly leaves out the others. A line that is alone in its panel is in none, and
    has the colour of no other. ``first`` lines of other panels have had their looks.
    """
    legend_names = {trace.name for trace in drawing.data if trace.showlegend}
    traces = []
    for number, trace in enumerate(lines):
        is_alone = place is not None and len(lines) == 1
        look = LineLook(NEUTRAL, "solid") if is_alone else line_look(first + number)
        traces.append(
            {
                "type": "scatter",
                "x": numbers(trace.x),
                "y": numbers(trace.y),
                "name": trace.name,
                "mode": "lines",
                "line": {"color": look.color, "dash": look.dash, "width": 1.6},
                "legendgroup": trace.name,
                "showlegend": len(lines) > 1 and len(trace.x) > 0 and trace.name not in legend_names,
                "hovertemplate": hover,
            }
        )
    # Together: Plotly checks each of them twice where they are added one by one.
    places = {f"{name}s": [value] * len(traces) for name, value in (place or {}).items()}
    drawing.add_traces(traces, **places)


def _whole_steps(drawing: go.Figure, steps: int) -> go.Figure:
    """No ticks between the first few steps."""
    return drawing.update_xaxes(dtick=1) if steps <= FEW_STEPS else drawing


def _warmup(drawing: go.Figure, first_measured: int | None, first: int, shift: float) -> None:
    """Shades the steps before ``first_measured``, which are not measured, and says so in the legend."""
    if first_measured is None:
        return
    look = {"fillcolor": NEUTRAL, "opacity": 0.16, "line_width": 0, "layer": "below"}
    drawing.add_vrect(x0=first - shift, x1=first_measured - shift, **look)
    square = {"symbol": "square", "size": 11, "color": NEUTRAL, "opacity": 0.35}
    drawing.add_scatter(x=[None], y=[None], name="warm-up", mode="markers", marker=square, hoverinfo="skip")
