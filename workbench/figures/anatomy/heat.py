"""Ranks by steps as a heat map: the numbers of one metric, then the drawing. Pure.

Of many ranks on several hosts a row is a host first, with the largest value of its ranks; of many steps a column is
several, with the largest value among them. So nothing that stands out is lost, and a cell knows its rank and step.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from profilers.analysis.steps import WORK
from profilers.records.schema import PHASES
from workbench.figures.base import PHASE_NAMES, empty, figure
from workbench.figures.palette import DIVERGING, SEQUENTIAL
from workbench.figures.steps import MILLI
from workbench.records.columns import Array, Columns, common_steps, rows_of

#: Above this many ranks on several hosts, hosts come first.
MANY_RANKS = 16
#: Columns of a drawing.
MOST_COLUMNS = 200
OWN_WORK, STEP = "own work", "step time"
#: Name of a metric -> the fields of a step's record that it is the sum of.
METRICS: dict[str, tuple[str, ...]] = {
    OWN_WORK: tuple(f"{phase}_seconds" for phase in WORK),
    STEP: ("step_seconds",),
    **{PHASE_NAMES[phase]: (f"{phase}_seconds",) for phase in PHASES},
}


class Metric(NamedTuple):
    """A metric of the steps that all ranks recorded: seconds [ranks, steps], NaN where it is not known.

    ``is_measured`` says of each step whether it is none of the warm-up.
    """

    name: str
    ranks: list[int]
    steps: Array
    seconds: Array
    is_measured: Array

    def select_known(self) -> Metric:
        """Only the steps of which every rank knows it."""
        return self._select_steps(np.asarray(np.isfinite(self.seconds).all(axis=0)))

    def _select_steps(self, mask: Array) -> Metric:
        return self._replace(
            steps=self.steps[mask], seconds=self.seconds[:, mask], is_measured=self.is_measured[mask]
        )

    def excess_over_median(self) -> Metric:
        """Each rank's seconds beyond the median rank of the step."""
        return self._replace(seconds=self.seconds - np.median(self.seconds, axis=0))


class HeatSeries(NamedTuple):
    """A cell's milliseconds, and whose they are: ``places`` holds the rank and the step. None where nothing is known.

    A row of several ranks has the title of their host, ``by_host``. ``relative``: beside the median rank. ``scale``:
    the least and the most of the measured steps, of all while none is measured; warm-up would leave them one colour.
    """

    metric: str
    titles: list[str]
    steps: list[int]
    milliseconds: list[list[float | None]]
    places: list[list[tuple[int, int]]]
    steps_per_column: int
    relative: bool
    scale: tuple[float, float]
    by_host: bool = False

    @property
    def exceeds_scale(self) -> bool:
        """Whether warm-up steps lie beyond the scale."""
        return any(value is not None and value > self.scale[1] for row in self.milliseconds for value in row)


def metric_of(steps: Mapping[int, Columns], name: str, measured: bool = False) -> Metric:
    """One of ``METRICS`` for the steps that every rank has written; only ``measured`` ones if asked."""
    written = {rank: columns for rank, columns in sorted(steps.items()) if len(columns.get("step", ()))}
    common = common_steps([columns["step"] for columns in written.values()])
    if not written or not len(common):
        no_seconds = np.empty((len(written), 0))
        return Metric(name, list(written), np.empty(0, np.int64), no_seconds, np.empty(0, bool))
    places = {rank: rows_of(columns["step"], common) for rank, columns in written.items()}
    seconds = np.stack(
        [sum(columns[field][places[rank]] for field in METRICS[name]) for rank, columns in written.items()]
    )
    first = next(iter(written))
    measured_mask = np.asarray(written[first]["measured"][places[first]], dtype=bool)
    metric = Metric(name, list(written), common, np.asarray(seconds, dtype=float), measured_mask)
    return metric._select_steps(measured_mask) if measured else metric


def rows_by_host(ranks: Sequence[int], hosts: Mapping[int, str]) -> dict[str, list[int]]:
    """Ranks by host, in the order of their first ranks; those of an unknown host are together."""
    ranks_of_hosts: dict[str, list[int]] = {}
    for rank in ranks:
        ranks_of_hosts.setdefault(hosts.get(rank, "unknown host"), []).append(rank)
    return ranks_of_hosts


def heat_series(metric: Metric, rows: Mapping[str, Sequence[int]], relative: bool = False) -> HeatSeries:
    """``rows`` maps a row's title to its ranks; of each cell the largest value counts: that is what is looked for."""
    metric_drawn = metric.excess_over_median() if relative and len(metric.ranks) > 1 else metric
    per_column = max(1, -(-len(metric_drawn.steps) // MOST_COLUMNS))
    starts = range(0, len(metric_drawn.steps), per_column)
    numbers, places = [], []
    for members in rows.values():
        row_places = np.array([metric.ranks.index(rank) for rank in members])
        cells = [_largest(metric_drawn, row_places, start, start + per_column) for start in starts]
        numbers.append([cell[0] for cell in cells])
        places.append([cell[1] for cell in cells])
    steps = [int(metric_drawn.steps[start]) for start in starts]
    by_host = any(len(members) > 1 for members in rows.values())
    scale = _scale(numbers, places, set(metric_drawn.steps[metric_drawn.is_measured].tolist()))
    return HeatSeries(metric.name, list(rows), steps, numbers, places, per_column, relative, scale, by_host)


def _scale(
    numbers: Sequence[Sequence[float | None]],
    places: Sequence[Sequence[tuple[int, int]]],
    measured: Container[int],
) -> tuple[float, float]:
    cells = [
        (value, step)
        for row, row_places in zip(numbers, places, strict=True)
        for value, (_, step) in zip(row, row_places, strict=True)
        if value is not None
    ]
    values = [value for value, step in cells if step in measured] or [value for value, _ in cells] or [0.0]
    return min(values), max(values)


def _largest(metric: Metric, rows: Array, start: int, stop: int) -> tuple[float | None, tuple[int, int]]:
    cell = metric.seconds[rows, start:stop]
    finite_cell = np.where(np.isfinite(cell), cell, -np.inf)
    row, column = np.unravel_index(int(finite_cell.argmax()), finite_cell.shape)
    value = float(cell[row, column])
    place = metric.ranks[int(rows[row])], int(metric.steps[start + int(column)])
    return (value * MILLI if np.isfinite(value) else None), place


_ROW, _FRAME = 22, 132
_MOST_PIXELS = 900


def heat(series: HeatSeries, revision: str = "") -> go.Figure:
    """Bright is long; beside the median, brown is behind it and blue ahead."""
    suffix, rows = " beside the median rank" if series.relative else "", "host" if series.by_host else "rank"
    title = f"{series.metric[:1].upper()}{series.metric[1:]}{suffix}, by {rows} and step"
    height = min(_MOST_PIXELS, _FRAME + _ROW * max(3, len(series.titles)))
    drawing = figure(title, _steps_title(series), "", revision, height)
    if not any(value is not None for row in series.milliseconds for value in row):
        return empty(drawing, "no step was recorded in detail yet")
    drawing.add_heatmap(
        x=series.steps,
        y=series.titles,
        z=series.milliseconds,
        customdata=[[list(place) for place in row] for row in series.places],
        hovertemplate="rank %{customdata[0]}, step %{customdata[1]}: %{z:,.2f} ms<extra></extra>",
        colorbar={"title": {"text": "ms", "side": "top"}, "thickness": 12, "outlinewidth": 0},
        **_colours(series),
    )
    drawing.update_layout(hovermode="closest", margin_t=40)
    return drawing.update_yaxes(autorange="reversed", showgrid=False, automargin=True, type="category")


def _steps_title(series: HeatSeries) -> str:
    width = series.steps_per_column
    return "step" if width == 1 else f"step; a column is {width:,} of them, with the largest value among them"


def _colours(series: HeatSeries) -> dict[str, Any]:
    low, high = series.scale
    if not series.relative:
        return {"colorscale": SEQUENTIAL, "zmin": low, "zmax": high}
    most = max(abs(low), abs(high)) or 1.0
    return {"colorscale": DIVERGING, "zmin": -most, "zmax": most}
