"""What a run's ranks send: every collective of a step, and the plans of compression that it followed."""

from __future__ import annotations

import streamlit as st

from engine.config.errors import several
from engine.config.layout import RANKS
from profilers.model.rows import PlanRow
from profilers.model.run_summary import RunSummary
from workbench.figures import base, steps
from workbench.pages.widgets.common import icon_note, number_table, table
from workbench.pages.widgets.plotly_chart import shared_chart
from workbench.records.live_snapshot import Snapshot
from workbench.text import run as run_text
from workbench.text import step, words


def _none(summary: RunSummary) -> str:
    """Why there are no collectives."""
    if summary.world_size == 1:
        return "No collectives: a single rank sends nothing."
    if RANKS in summary.layout:
        return "No collectives: a study does not look into another trainer; `workbench run -- COMMAND` does."
    return "No collective was recorded yet."


def draw_collectives(snapshot: Snapshot, summary: RunSummary) -> None:
    """Seconds, bytes and bandwidth, with the reasons for cells that are empty."""
    rows = summary.communication or snapshot.communication
    if not rows:
        st.caption(_none(summary))
        return
    if summary.outer:
        st.caption(words.escape(f"Outer loop: {run_text.outer(summary.outer)}."))
    shared_chart(
        lambda: base.collectives(steps.collective_series(rows), snapshot.id),
        "run-collectives",
        "Collectives per step and rank",
        snapshot.version,
        summary.measured_steps,
    )
    st.caption(f"Means over ranks and the {summary.detailed_steps:,} measured steps in detail.")
    number_table(run_text.communication_columns(rows), "run-collective-table")
    if summary.communication:
        icon_note("cable", f"On the wire: {run_text.wire(summary)}.")
    for reason in run_text.missing_reasons(rows, summary):
        icon_note("info", f"{reason[:1].upper()}{reason[1:]}.")
    for label, text in run_text.uncompressed_lines(summary):
        icon_note("compress", f"{label.capitalize()}: {text}.")


def draw_plans(plans: list[PlanRow]) -> None:
    """The plans, and the values that the last one gives to layers; nothing without a plan."""
    if not plans:
        return
    last = plans[-1]
    st.markdown("**Compression plan**")
    icon_note("compress", f"{step.compression_plan(last)}.")
    number_table(step.compression_plan_columns(plans), "run-plan-table")
    if last.layers:
        with st.expander(f"Values of {several(len(last.layers), 'layers')}"):
            values = [f"{value:.3g}" for value in last.layers.values()]
            table({"layer": list(last.layers), last.method: values}, "run-plan-layers", {})
