"""Where the time of a run's steps went: by phase, by rank, and what was changed on the way."""

from __future__ import annotations

from typing import Any

import streamlit as st

from profilers.records.schema import PHASES
from workbench import figures, series, words
from workbench.live import Snapshot
from workbench.ui.chart import chart


def draw(seen: Snapshot, found: dict[str, Any]) -> None:
    """Charts on the left, the typical step's phases on the right."""
    left, right = st.columns([2.3, 1])
    with left:
        drawn = series.phase_series(series.slowest_rank(seen.steps), "the slowest rank of each step")
        marks = series.change_marks(found["changes"])
        chart(figures.marked(figures.phases(drawn, seen.id), marks), "run-phases", "Step time by phase")
        ranks = figures.ranks(series.rank_series(seen.steps), seen.id)
        chart(figures.marked(ranks, marks), "run-rank-steps", "Step time by rank")
        for text in words.changes(found["changes"]):
            st.caption(f":material/tune: Changed {text}.")
    with right:
        st.markdown("**Where a typical step goes**")
        _phase_table(found["phases"] or {})
        if found.get("mfu_reason"):
            st.caption(f"MFU: {found['mfu_reason']}.")
        for note in found.get("notes") or []:
            st.caption(f":material/info: {note}.")


def _phase_table(phases: dict[str, float]) -> None:
    if not phases:
        st.caption("No step was measured.")
        return
    whole = sum(phases.values())
    named = [phase for phase in PHASES if phases.get(phase)]
    st.dataframe(
        {
            "phase": [figures.PHASE_NAMES[phase] for phase in named] + ["step"],
            "ms": [phases[phase] * 1e3 for phase in named] + [whole * 1e3],
            "share": [phases[phase] / whole * 100 for phase in named] + [100.0],
        },
        key="run-phase-table",
        hide_index=True,
        height="content",
        column_config={
            "phase": st.column_config.TextColumn(width=150),
            "ms": st.column_config.NumberColumn(format="%,.2f", width=65),
            "share": st.column_config.ProgressColumn(format="%.1f %%", min_value=0, max_value=100),
        },
    )
