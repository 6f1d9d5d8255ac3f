"""Drawing of a run that is tuned while it goes: its rate over its steps, what was turned, and the seconds saved."""

from __future__ import annotations

import plotly.graph_objects as go

from workbench.analysis.live_report import LiveReport, WindowRow, change_words
from workbench.figures.base import empty, panels
from workbench.figures.palette import BEST, MEASURED, NEUTRAL


def live(report: LiveReport, revision: str = "") -> go.Figure:
    """Tokens per second over the steps, with the windows shaded; and what the run gained on the baseline so far."""
    labels = [("step", "tokens/s"), ("step", "seconds saved against the baseline")]
    drawing = panels("The run while it is tuned", labels, revision, 320)
    if not report.curve_steps:
        return empty(drawing, "no step was recorded yet")
    drawing.add_scatter(
        x=report.curve_steps,
        y=report.curve_tokens_per_second,
        name="tokens/s",
        mode="lines",
        line={"color": MEASURED, "width": 2},
        showlegend=False,
        hovertemplate="%{y:,.0f} tokens/s up to step %{x:,}",
        row=1,
        col=1,
    )
    if report.curve_saved_seconds:
        drawing.add_scatter(
            x=report.curve_steps,
            y=report.curve_saved_seconds,
            name="saved",
            mode="lines",
            line={"color": BEST, "width": 2},
            showlegend=False,
            hovertemplate="%{y:+,.2f} s up to step %{x:,}",
            row=1,
            col=2,
        )
        drawing.add_hline(y=0, line={"color": NEUTRAL, "width": 1, "dash": "dot"}, row=1, col=2)
    windows = [row for row in report.windows if not row.undone]
    for number, row in enumerate(windows):
        _shade(drawing, row, number)
    _changes(drawing, report)
    return drawing.update_layout(hovermode="closest").update_xaxes(range=[0, report.steps])


def _changes(drawing: go.Figure, report: LiveReport) -> None:
    """Each turn of the run, at the top; hovering says from which step on, what was turned, and what it bought."""
    if not report.changes:
        return
    drawing.add_scatter(
        x=[row.step for row in report.changes],
        y=[max(report.curve_tokens_per_second)] * len(report.changes),
        name="changed",
        mode="markers",
        marker={"symbol": "diamond", "size": 8, "color": NEUTRAL},
        showlegend=False,
        text=[change_words(row) for row in report.changes],
        hovertemplate="%{text}<extra></extra>",
        row=1,
        col=1,
    )


def _shade(drawing: go.Figure, row: WindowRow, number: int) -> None:
    """Windows one after the other differ in shade; one that is longer than a few steps has its trial's number."""
    drawing.add_vrect(
        x0=row.first,
        x1=row.end,
        fillcolor=NEUTRAL,
        opacity=0.22 if number % 2 else 0.1,
        line_width=0,
        row=1,
        col=1,
    )
