"""Drawings of a pipeline schedule: for the page, and as an SVG file for documents.

The numbers behind a drawing of a pipeline schedule: one bar for each action of the very list that ranks execute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from engine.config.errors import several
from engine.config.run_config import RunConfig
from engine.footprint.footprint import plan_of, skips_of
from engine.schedules.actions import Costs, Plan, Work
from engine.schedules.registry import plan
from engine.schedules.simulate import peak_in_flight, simulate
from engine.schedules.skip_pipe import relative_sizes
from profilers.analysis.anatomy import clocks_of
from profilers.records.reader import RunRecords
from profilers.steps.clock_offset import ClockOffset
from workbench.figures.base import figure
from workbench.figures.palette import WORK_COLORS
from workbench.figures.steps import MILLI

#: A backward takes twice a forward's time; split, each part takes as long as a forward.
USUAL = Costs(forward=1.0, backward=2.0, input=1.0, weight=1.0)
WORDS = {
    Work.FORWARD: "forward",
    Work.BACKWARD: "backward",
    Work.INPUT: "backward, input",
    Work.WEIGHT: "backward, weights",
}


class Bar(NamedTuple):
    """One action: its rank, kind, chunk of the rank (0 is nearest the input), and time in forwards."""

    rank: int
    work: Work
    micro_batch: int
    stage: int
    chunk: int
    start: float
    length: float


class ScheduleSeries(NamedTuple):
    """Bars of all ranks; time is counted in forwards of one stage."""

    kind: str
    ranks: int
    chunks: int
    micro_batches: int
    bars: list[Bar]
    length: float
    bubble_fraction: float
    #: Peak activations of each rank, in stages x micro-batches.
    in_flight: tuple[float, ...]
    #: The stages of each micro-batch, in order; empty where all go through all.
    paths: tuple[tuple[int, ...], ...] = ()

    @property
    def left_out(self) -> int:
        """Visits of stages that micro-batches leave out."""
        return sum(self.ranks * self.chunks - len(path) for path in self.paths)

    @property
    def title(self) -> str:
        """What is drawn, with its two figures of merit."""
        sizes = f"{several(self.ranks, 'ranks')} x {several(self.chunks, 'chunks')}"
        peak = max(self.in_flight)
        visits = self.ranks * self.chunks * self.micro_batches
        skip_text = f", {self.left_out} of {visits} visits of stages left out" if self.paths else ""
        return (
            f"{self.kind}: {sizes}, {several(self.micro_batches, 'micro-batches')}{skip_text}; "
            f"bubble {100 * self.bubble_fraction:.0f} %, at most {peak:g} stage activations on a rank"
        )


def schedule_series(kind: str, ranks: int, chunks: int, micro_batches: int) -> ScheduleSeries:
    """A schedule at the usual costs.

    Raises:
        ValueError: a number that the kind cannot use; KeyError: an unknown kind.
    """
    return series_of(plan(kind, ranks, chunks, micro_batches))


def series_of_run(config: RunConfig) -> ScheduleSeries | None:
    """The schedule of a run; None where there is only one stage."""
    if config.parallel.pp * config.schedule.chunks == 1:
        return None
    plan, skips = plan_of(config), skips_of(config)
    sizes = relative_sizes(plan, skips.layers) if skips else ()
    return series_of(plan, sizes, config.schedule.registers)


def series_of(plan: Plan, sizes: Sequence[float] = (), registers: int | None = None) -> ScheduleSeries:
    """Bars and figures of merit of any plan; stages take their ``sizes`` times as long, and have ``registers``."""
    timeline = simulate(plan, USUAL, sizes, registers)
    bars = []
    for rank, spans in enumerate(timeline.spans):
        rank_stages = plan.stages_of(rank)
        for action, start, end in spans:
            chunk = rank_stages.index(action.stage)
            bars.append(Bar(rank, action.work, action.micro_batch, action.stage, chunk, start, end - start))
    return ScheduleSeries(
        plan.kind,
        plan.ranks,
        plan.chunks,
        plan.micro_batches,
        bars,
        timeline.seconds,
        timeline.bubble_fraction,
        peak_in_flight(plan),
        plan.paths,
    )


#: How much white the last chunk's colour gets, and the brightness from which text on it is black.
WHITEST, BRIGHT = 0.6, 0.42
UNIT, ROW, GAP, LEFT, TOP = 24.0, 26, 4, 52, 34


def schedule(series: ScheduleSeries) -> go.Figure:
    """One row a rank, one bar an action."""
    height = 120 + 34 * series.ranks
    drawing = figure(series.title, "time, in forwards of one stage", "rank", series.kind, height)
    for work, name in WORDS.items():
        bars = [bar for bar in series.bars if bar.work is work]
        if bars:
            drawing.add_bar(**_bars(bars, series.chunks), name=name, marker_line_width=0)
    drawing.update_layout(barmode="overlay", bargap=0.12)
    drawing.update_yaxes(autorange="reversed", dtick=1)
    return drawing


def _bars(bars: list[Bar], chunks: int) -> dict[str, object]:
    return {
        "orientation": "h",
        "y": [bar.rank for bar in bars],
        "x": [bar.length for bar in bars],
        "base": [bar.start for bar in bars],
        "text": [str(bar.micro_batch) for bar in bars],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "marker": {"color": [_color(bar, chunks) for bar in bars]},
        "textfont": {"color": [_ink(_color(bar, chunks)) for bar in bars]},
        "customdata": [[bar.stage, bar.micro_batch] for bar in bars],
        "hovertemplate": "stage %{customdata[0]}, micro-batch %{customdata[1]}<extra>%{fullData.name}</extra>",
    }


def path_text(path: Sequence[int], stages: int) -> str:
    """Which stages a micro-batch leaves out, and whether two change places."""
    skipped_stages = [str(stage) for stage in range(stages) if stage not in path]
    skip_text = f"leaves out {', '.join(skipped_stages)}" if skipped_stages else "all stages"
    return skip_text + (f", in the order {' '.join(map(str, path))}" if list(path) != sorted(path) else "")


def path_columns(series: ScheduleSeries) -> dict[str, list[Any]]:
    """Each micro-batch and its path, as a table."""
    stages = series.ranks * series.chunks
    return {
        "micro-batch": list(range(len(series.paths))),
        "path": [path_text(path, stages) for path in series.paths],
    }


def _color(bar: Bar, chunks: int) -> str:
    """The colour of a kind of work, with the more white the later the chunk."""
    white = WHITEST * (bar.chunk / (chunks - 1) if chunks > 1 else 0.0)
    return "#" + "".join(
        f"{round(part + (255 - part) * white):02X}" for part in _parts(WORK_COLORS[bar.work])
    )


def _ink(color: str) -> str:
    red, green, blue = _parts(color)
    return "#000" if (0.299 * red + 0.587 * green + 0.114 * blue) / 255 > BRIGHT else "#fff"


def _parts(color: str) -> list[int]:
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)]


class TimedSeries(NamedTuple):
    """A schedule whose actions took seconds: ``bars`` are in milliseconds since the first of them began."""

    title: str
    ranks: int
    chunks: int
    bars: list[Bar]

    @property
    def milliseconds(self) -> float:
        """From the first action to the end of the last."""
        return max((bar.start + bar.length for bar in self.bars), default=0.0)

    @property
    def bubble_fraction(self) -> float:
        """Idle over ranks times the whole length."""
        return 1.0 - sum(bar.length for bar in self.bars) / (self.ranks * self.milliseconds)


class TimedAction(NamedTuple):
    """An action of a rank of the pipeline, in seconds."""

    rank: int
    work: Work
    micro_batch: int
    stage: int
    start: float
    length: float


def timed_series(title: str, plan: Plan, actions: Sequence[TimedAction]) -> TimedSeries:
    """Of actions that ran, or were simulated; ``plan`` says which chunk of a rank a stage is."""
    origin = min((action.start for action in actions), default=0.0)
    bars = [
        Bar(
            action.rank,
            action.work,
            action.micro_batch,
            action.stage,
            plan.stages_of(action.rank).index(action.stage),
            (action.start - origin) * MILLI,
            action.length * MILLI,
        )
        for action in actions
    ]
    return TimedSeries(title, plan.ranks, plan.chunks, bars)


def pipeline_actions(records: RunRecords, step: int, pipeline: Sequence[int]) -> list[TimedAction]:
    """What the ranks of a pipeline did in a step, by the clock of rank 0; empty if one of them recorded nothing."""
    clocks, actions = clocks_of(records), list[TimedAction]()
    for place, rank in enumerate(pipeline):
        table = records.table(rank, "action")
        places = np.flatnonzero(np.ma.getdata(table.column("step")) == step)
        if not len(places):
            return []
        part: Iterable[Any] = table.part(int(places[0]), int(places[-1]) + 1).rows()
        rows = [row for row in part if row.step == step]
        starts = clocks.get(rank, ClockOffset()).align(np.array([row.start_unix for row in rows]))
        actions += [
            TimedAction(place, Work(row.work), row.micro_batch, row.stage, start, row.seconds)
            for row, start in zip(rows, starts.tolist(), strict=True)
        ]
    return actions


def draw_timed(series: TimedSeries, longest: float, revision: str = "") -> go.Figure:
    """The same on an axis of milliseconds up to ``longest``, so that drawings below each other compare."""
    height = 110 + 30 * series.ranks
    share = f"bubble {100 * series.bubble_fraction:.0f} %, {series.milliseconds:,.1f} ms"
    drawing = figure(f"{series.title}: {share}", "ms", "rank", revision, height)
    for work, name in WORDS.items():
        bars = [bar for bar in series.bars if bar.work is work]
        if bars:
            drawing.add_bar(**_bars(bars, series.chunks), name=name, marker_line_width=0)
    drawing.update_layout(barmode="overlay", bargap=0.12).update_xaxes(range=[0, longest * 1.01])
    return drawing.update_yaxes(autorange="reversed", dtick=1)


def schedule_svg(series: ScheduleSeries) -> str:
    """The same as a file that stands alone; text and lines follow the viewer's light or dark setting."""
    width = LEFT + UNIT * series.length + 8
    height = TOP + ROW * series.ranks + 28
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="system-ui, sans-serif" font-size="11" role="img">',
        "<style>.t{fill:#333}@media (prefers-color-scheme:dark){.t{fill:#ddd}}</style>",
        f"<title>{escape(series.title)}</title>",
        f'<text class="t" x="4" y="16" font-size="12">{escape(series.title)}</text>',
    ]
    parts += [
        f'<text class="t" x="4" y="{TOP + ROW * rank + 16}">rank {rank}</text>'
        for rank in range(series.ranks)
    ]
    parts += [_rectangle(bar, series.chunks) for bar in series.bars]
    parts += _legend(series, height - 10)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _rectangle(bar: Bar, chunks: int) -> str:
    x, y = LEFT + UNIT * bar.start, TOP + ROW * bar.rank
    width, color = UNIT * bar.length - 1, _color(bar, chunks)
    return (
        f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{ROW - GAP}" rx="2" fill="{color}"/>'
        f'<text x="{x + width / 2:g}" y="{y + 15}" fill="{_ink(color)}" text-anchor="middle">{bar.micro_batch}</text>'
    )


def _legend(series: ScheduleSeries, y: float) -> list[str]:
    parts, x = [], float(LEFT)
    for work, name in WORDS.items():
        if any(bar.work is work for bar in series.bars):
            parts.append(f'<rect x="{x:g}" y="{y - 9:g}" width="10" height="10" fill="{WORK_COLORS[work]}"/>')
            parts.append(f'<text class="t" x="{x + 14:g}" y="{y:g}">{name}</text>')
            x += 24 + 6.2 * len(name)
    note = "numbers: micro-batches" + ("; lighter: later chunks" if series.chunks > 1 else "")
    return [*parts, f'<text class="t" x="{x + 6:g}" y="{y:g}">{note}</text>']
