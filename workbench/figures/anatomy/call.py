"""One call of a collective: from when each rank issued it, and from when on it could run. No numbers are made here."""

from __future__ import annotations

import plotly.graph_objects as go

from profilers.collectives.collective_call import CollectiveCall
from workbench.figures.base import empty, figure
from workbench.figures.palette import NEUTRAL, PHASE_COLORS
from workbench.figures.steps import MILLI

_ROW, _FRAME = 26, 150
_MOST_PIXELS = 900


def call(meeting: CollectiveCall, revision: str = "") -> go.Figure:
    """One row a rank: a pale bar while it waited for the last one, a full one from then on."""
    title = f"{meeting.operation} · {meeting.axis}, call {meeting.number:,} of step {meeting.step:,}"
    height = min(_MOST_PIXELS, _FRAME + _ROW * max(2, len(meeting.ranks)))
    drawing = figure(title, "ms since the step began", "", revision, height)
    ended = [attendance for attendance in meeting.ranks if attendance.ended is not None]
    if not ended:
        return empty(drawing, "it had not ended on any rank when the step was written")
    names = [
        f"rank {attendance.rank}" + (" (last)" if attendance.rank == meeting.last_rank else "")
        for attendance in ended
    ]
    waits = [attendance.waited_seconds or 0.0 for attendance in ended]
    bars = {
        f"waits for rank {meeting.last_rank}": (
            [attendance.issued for attendance in ended],
            waits,
            NEUTRAL,
            0.45,
        ),
        "runs": (
            [attendance.issued + wait for attendance, wait in zip(ended, waits, strict=True)],
            [
                (attendance.ended or 0.0) - attendance.issued - wait
                for attendance, wait in zip(ended, waits, strict=True)
            ],
            PHASE_COLORS["communication_exposed"],
            1.0,
        ),
    }
    for name, (base, length, color, opacity) in bars.items():
        drawing.add_bar(
            orientation="h",
            name=name,
            y=names,
            base=[start * MILLI for start in base],
            x=[seconds * MILLI for seconds in length],
            customdata=[attendance.rank for attendance in ended],
            marker={"color": color, "opacity": opacity, "line": {"width": 0}},
            hovertemplate="%{x:,.3f} ms from %{base:,.3f} ms on<extra>%{fullData.name}</extra>",
        )
    drawing.update_layout(barmode="overlay", hovermode="closest")
    return drawing.update_yaxes(autorange="reversed", showgrid=False, automargin=True)
