"""Drawings of the loss on held-out text, against steps, seconds and bytes on the wire, and of the load of experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from profilers.model.rows import ExpertRow, TaskRow
from workbench.figures.base import empty, figure, numbers, panels
from workbench.figures.palette import MEASURED, NEUTRAL, SEQUENTIAL, line_look
from workbench.figures.steps import losses_of

#: What is on the horizontal axes, its title, and how the numbers of rows are scaled for it.
PANELS = (
    ("step", "steps", 1.0),
    ("seconds", "seconds of training", 1.0),
    ("wire_bytes", "MB sent by a rank", 1e-6),
)
LOSS = "loss, nats per token"


def quality(
    curve: Sequence[Mapping[str, Any]], baseline: Sequence[Mapping[str, Any]], revision: str = ""
) -> go.Figure:
    """Three small figures side by side: this run, and the exact baseline if there is one."""
    labels = [(title, LOSS if number == 0 else "") for number, (_, title, _) in enumerate(PANELS)]
    drawing = panels("Loss on held-out text", labels, revision, 300)
    if not curve:
        return empty(drawing, "no loss on held-out text was recorded")
    lines = [("this run", curve, MEASURED, "solid")]
    lines += [("exact baseline", baseline, NEUTRAL, "dash")] if baseline else []
    for column, (key, title, factor) in enumerate(PANELS, 1):
        for name, rows, color, dash in lines:
            rows_with_value = [row for row in rows if row.get(key) is not None]
            drawing.add_scatter(
                x=[row[key] * factor for row in rows_with_value],
                y=[row["loss"] for row in rows_with_value],
                name=name,
                mode="lines+markers",
                line={"color": color, "width": 2, "dash": dash},
                marker={"size": 5},
                legendgroup=name,
                showlegend=column == 1,
                hovertemplate=f"%{{y:.4f}} at %{{x:,.3~f}} {title}",
                row=1,
                col=column,
            )
    return drawing.update_layout(hovermode="closest").update_xaxes(rangemode="tozero")


def tasks(rows: Sequence[TaskRow], first_step: int, revision: str = "") -> go.Figure:
    """A line of each task's training loss."""
    drawing = figure("Training loss of each task", "step", LOSS, revision)
    for number, row in enumerate(rows):
        series = losses_of(row.losses, first_step=first_step)
        drawing.add_scatter(
            x=numbers(series.steps),
            y=numbers(series.losses),
            name=row.name,
            mode="lines",
            line=line_look(number)._asdict() | {"width": 2},
            hovertemplate="%{y:.4f}",
        )
    return drawing


def experts(rows: Sequence[ExpertRow], revision: str = "") -> go.Figure:
    """Layers by experts: each one's share of the choices over an even one."""
    drawing = figure("Load of experts", "expert", "layer", revision, 120 + 28 * len(rows))
    drawing.add_heatmap(
        x=list(range(len(rows[0].load))),
        y=[str(row.layer) for row in rows],
        z=[[share * len(row.load) for share in row.load] for row in rows],
        zmin=0,
        zmax=max(2.0, *(max(row.load) * len(row.load) for row in rows)),
        colorscale=SEQUENTIAL,
        xgap=1,
        ygap=1,
        colorbar={"title": {"text": "times even"}, "thickness": 12},
        hovertemplate="layer %{y}, expert %{x}: %{z:.2f} times an even share<extra></extra>",
    )
    return drawing.update_yaxes(type="category", autorange="reversed").update_xaxes(dtick=1)
