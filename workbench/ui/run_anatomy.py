"""The anatomy of a step: lanes of all ranks on one time axis, axes, bubble, skew, gaps, warm-up and clocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from engine.run import run_folder
from workbench import archive, figures, lane_figures, lanes, skew, words
from workbench.live import Snapshot
from workbench.series import RANKS
from workbench.ui import anatomy_words
from workbench.ui.chart import chart
from workbench.ui.shared import home, table

FRESH_SECONDS = 2.0


def draw(seen: Snapshot, found: dict[str, Any]) -> None:
    """Lanes first, then what they come to over the whole run."""
    _one_step(home() / seen.id / run_folder.RECORDS, seen)
    left, right = st.columns(2)
    with left:
        by_axis = (found.get("exposed_seconds_by_axis") or {}, found.get("hidden_seconds_by_axis") or {})
        drawn = lane_figures.exposed_by_axis(*by_axis, seen.id)
        chart(drawn, "run-axes", "Exposed and hidden communication by axis")
        st.caption(f":material/info: {anatomy_words.AXES}")
    with right:
        chart(
            lane_figures.skew(skew.skew_series(seen.steps), seen.id), "run-skew", "Skew between ranks by step"
        )
        st.caption(f":material/person_alert: {anatomy_words.straggler(found)}")
    for line in anatomy_words.findings(found):
        st.markdown(f":material/straighten: {line}")
    _gaps(found.get("gaps") or [])


@st.cache_data(ttl=FRESH_SECONDS, show_spinner=False)
def _steps(folder: Path) -> tuple[list[int], list[int]]:
    records = archive.records(folder)
    return lanes.kept_steps(records), records.ranks()


@st.cache_data(ttl=FRESH_SECONDS, show_spinner=False)
def _lanes(folder: Path, step: int, ranks: tuple[int, ...]) -> lanes.LaneSeries:
    return lanes.lane_series(archive.records(folder), step, ranks)


def _one_step(folder: Path, seen: Snapshot) -> None:
    steps, ranks = _steps(folder)
    if not steps:
        empty = figures.figure("One step by rank", "ms since the step's start", "", seen.id)
        text = (
            "no span was kept yet: those of every eighth step and of slow ones are, with profile.collectives"
        )
        chart(figures.empty(empty, text), "run-lanes", "Lanes of one step, none yet")
        return
    with st.container(horizontal=True, key="run-lanes-choice"):
        step = st.selectbox("Step", steps[::-1], key="run-lanes-step", width=160, format_func=words.number)
        chosen = ranks[:RANKS]
        if len(ranks) > RANKS:
            chosen = st.multiselect("Ranks", ranks, chosen, key="run-lanes-ranks") or chosen
    drawn = _lanes(folder, step, tuple(chosen))
    chart(
        lane_figures.lanes(drawn, f"{seen.id}-{step}"), "run-lanes", "Phases, actions and collectives by rank"
    )
    st.caption(f":material/schedule: {anatomy_words.lanes(drawn)}")


def _gaps(rows: list[dict[str, Any]]) -> None:
    """The costliest gaps between named phases."""
    if not rows:
        return
    st.markdown("**Gaps in which nothing named ran**")
    numbers = st.column_config.NumberColumn
    table(
        {
            "between": [anatomy_words.between(row) for row in rows],
            "ms per step": [row["seconds"] * 1e3 for row in rows],
            "longest, ms": [row["longest_seconds"] * 1e3 for row in rows],
            "on rank": [row["rank"] for row in rows],
            "in step": [row["step"] for row in rows],
        },
        "run-gaps",
        {
            "ms per step": numbers(
                format="%,.3f", help="Mean over ranks and the steps whose spans were kept."
            ),
            "longest, ms": numbers(format="%,.3f"),
            "in step": numbers(format="%,d"),
        },
    )
