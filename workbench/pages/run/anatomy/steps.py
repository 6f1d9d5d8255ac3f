"""The anatomy of a step: lanes of all ranks on one time axis, axes, bubble, skew, gaps, warm-up and clocks.

Where the time of a run's steps went: by phase, by rank, and what was changed on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import plotly.graph_objects as go
import streamlit as st

from engine.run import run_folder
from profilers.model.rows import ChangeRow
from profilers.model.run_summary import RunSummary
from workbench.figures import base, steps
from workbench.figures.anatomy import lanes
from workbench.figures.anatomy.lanes import lanes_note
from workbench.figures.steps import RANKS
from workbench.pages.widgets.common import home, icon_note, number_table, side_by_side
from workbench.pages.widgets.plotly_chart import chart, shared_chart, shared_clickable_chart
from workbench.records import archive
from workbench.records.live_snapshot import Snapshot
from workbench.text import run as run_text
from workbench.text import step as step_text
from workbench.text import words

#: Steps and their lanes that are remembered: of a run that has ended they are read once.
_REMEMBERED = 32


def _nothing(summary: RunSummary, none_recorded: str) -> str:
    """Why a chart of the steps in detail is empty; ``none_recorded`` where there were such steps."""
    if not summary.measured_steps:
        return "no step was measured"
    return none_recorded if summary.detailed_steps else str(summary.wire_bytes_reason)


def draw_anatomy(snapshot: Snapshot, summary: RunSummary) -> None:
    """Lanes first, then what they come to over the whole run."""
    _one_step(home() / snapshot.id / run_folder.RECORDS, snapshot)
    left, right = st.columns(2)
    with left:
        shared_chart(
            lambda: _axes(snapshot.id, summary),
            "run-axes",
            "Exposed and hidden communication by axis",
            snapshot.version,
            summary.measured_steps,
        )
        st.caption(f":material/info: {step_text.AXES}")
    with right:
        shared_chart(
            lambda: lanes.skew(steps.skew_series(snapshot.steps), snapshot.id),
            "run-skew",
            "Skew between ranks by step",
            snapshot.version,
        )
        icon_note("person_alert", step_text.straggler(summary))
    for line in step_text.anatomy(summary):
        st.markdown(f":material/straighten: {words.escape(line)}")
    if summary.gaps:
        st.markdown("**Gaps in which no recorded phase ran**")
        number_table(step_text.gap_columns(summary.gaps), "run-gaps")


def _axes(run: str, summary: RunSummary) -> go.Figure:
    empty_text = _nothing(summary, "no communication was recorded")
    return lanes.axis_bars(summary.exposed_seconds_by_axis, summary.hidden_seconds_by_axis, run, empty_text)


@st.cache_resource(max_entries=_REMEMBERED, show_spinner=False)
def _steps(folder: Path, look: str) -> tuple[list[int], list[int]]:
    del look
    records = archive.records(folder)
    return lanes.kept_steps(records), records.ranks()


@st.cache_resource(max_entries=_REMEMBERED, show_spinner=False)
def _lanes(folder: Path, look: str, step: int, ranks: tuple[int, ...]) -> lanes.LaneSeries:
    del look
    return lanes.lane_series(archive.records(folder), step, ranks)


def _one_step(folder: Path, snapshot: Snapshot) -> None:
    steps, ranks = _steps(folder, snapshot.version)
    if not steps:
        empty = base.figure("One step by rank", "ms since the step's start", "", snapshot.id)
        text = "no spans were kept; with profile.collectives they are kept for every eighth step and for slow steps"
        chart(base.empty(empty, text), "run-lanes", "Timeline of one step, none yet")
        return
    with st.container(horizontal=True, key="run-lanes-choice"):
        step = st.selectbox("Step", steps[::-1], key="run-lanes-step", width=160, format_func=words.number)
        selected_ranks = ranks[:RANKS]
        if len(ranks) > RANKS:
            selected_ranks = (
                st.multiselect("Ranks", ranks, selected_ranks, key="run-lanes-ranks") or selected_ranks
            )
    timeline = _lanes(folder, snapshot.version, step, tuple(selected_ranks))
    shared_chart(
        lambda: lanes.lanes(timeline, f"{snapshot.id}-{step}"),
        "run-lanes",
        "Phases, actions and collectives by rank",
        snapshot.version,
        step,
        *selected_ranks,
    )
    icon_note("schedule", lanes_note(timeline))


def draw_lanes(snapshot: Snapshot, step: int, rank: int | None, go: Callable[..., None]) -> None:
    """The lanes of a step: those of a rank come first. A click on a call goes to it; on another bar, to its rank."""
    folder = home() / snapshot.id / run_folder.RECORDS
    steps, ranks = _steps(folder, snapshot.version)
    if step not in steps:
        nearest = sorted(sorted(steps, key=lambda other: abs(other - step))[:3])
        nearest_text = f"; the nearest that were: {', '.join(map(words.number, nearest))}" if nearest else ""
        st.caption(
            f":material/info: {words.escape(f'The phases of this step were not kept as spans{nearest_text}.')}"
        )
        return
    first = [] if rank is None or rank not in ranks else [rank]
    drawn_ranks = [*first, *(other for other in ranks if other not in first)][:RANKS]
    timeline = _lanes(folder, snapshot.version, step, tuple(sorted(drawn_ranks)))
    point = shared_clickable_chart(
        lambda: lanes.lanes(timeline, f"{snapshot.id}-{step}"),
        "steps-lanes",
        "Phases, actions and collectives by rank",
        snapshot.version,
        step,
        *drawn_ranks,
    )
    if point and isinstance(point.customdata, list):
        number, _, call = point.customdata
        go(rank=number, call=call or None)
        st.rerun()
    st.caption(
        f":material/schedule: {words.escape(f'{lanes_note(timeline)} Click on a call to see it on all its ranks.')}"
    )


def draw_steps(snapshot: Snapshot, summary: RunSummary, changes: Sequence[ChangeRow]) -> None:
    """Charts on the left, the mean step's phases on the right."""
    left, right = side_by_side("run-steps", 2.3, 1)
    with left:
        marks = steps.change_marks(changes)
        for draw, key, alt in [
            (_phases, "run-phases", "Step time by phase"),
            (_ranks, "run-rank-steps", "Step time by rank"),
        ]:
            shared_chart(partial(draw, snapshot, marks), key, alt, snapshot.version, len(marks))
        for text in run_text.changes(changes):
            st.caption(f":material/tune: Changed {words.escape(text)}.")
    with right:
        st.markdown("**Where the mean step goes**")
        empty_text = _nothing(summary, "no phase was recorded")
        _phase_table(step_text.add_between(summary.phases, summary.between_seconds or 0.0), empty_text)
        if summary.mfu_reason:
            st.caption(words.escape(f"MFU: {summary.mfu_reason}."))
        for _, note in run_text.note_lines(summary):
            icon_note("info", f"{note}.")


def _phases(snapshot: Snapshot, marks: Sequence[steps.Mark]) -> go.Figure:
    series = steps.phase_series(steps.slowest_rank(snapshot.steps), "the slowest rank of each step")
    return base.add_marks(base.phases(series, snapshot.id), marks)


def _ranks(snapshot: Snapshot, marks: Sequence[steps.Mark]) -> go.Figure:
    return base.add_marks(base.ranks(steps.rank_series(snapshot.steps), snapshot.id), marks)


def _phase_table(phases: dict[str, float], empty_text: str) -> None:
    if not phases:
        st.caption(words.escape(f"{empty_text[0].upper()}{empty_text[1:]}."))
        return
    step_seconds = sum(phases.values())
    phases_with_time = [phase for phase in phases if phases[phase]]
    st.dataframe(
        {
            "phase": [base.PHASE_NAMES.get(phase, words.ending_words(phase)) for phase in phases_with_time]
            + ["step"],
            "ms": [phases[phase] * 1e3 for phase in phases_with_time] + [step_seconds * 1e3],
            "share": [phases[phase] / step_seconds * 100 for phase in phases_with_time] + [100.0],
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
