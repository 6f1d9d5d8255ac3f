"""Page Live: the run that is going now, drawn anew each second from its folder."""

from __future__ import annotations

import streamlit as st

from engine.run import run_folder
from tuning.execution.live.ongoing_run import RUNS
from tuning.storage.study_folder import STUDIES
from workbench.home import runs
from workbench.home.store import RunRow, StudyRow
from workbench.pages.navigation import PAGES
from workbench.pages.run import quality
from workbench.pages.run.live import charts, header
from workbench.pages.widgets.common import (
    draw_guarded,
    home,
    limit_options,
    nothing_yet,
    recent_summary_of,
    redraw_on_change,
    restore_choice,
    run_rows,
    save_choice,
    study_rows,
    thin_snapshot,
)
from workbench.pages.widgets.heading import heading
from workbench.records.live_snapshot import Snapshot
from workbench.text import words

NEWEST = "newest"
REFRESH_SECONDS = 1.0


def page() -> None:
    """Chooser on top, then everything that moves."""
    rows = run_rows()
    redraw_on_change(lambda: [row.id for row in run_rows()])
    title, chooser, switch = st.columns([4, 4, 2], vertical_alignment="bottom")
    with title:
        heading("Live", "What every rank is doing, updated each second from the run's folder.")
    with chooser:
        options = [NEWEST, *limit_options("run", [row.id for row in rows])]
        by_id = {row.id: row for row in rows}
        restore_choice("run", options)
        run_id = st.selectbox(
            "Run", options, key="run", format_func=lambda name: _label(name, by_id.get(name))
        )
        save_choice("run", run_id)
    with switch:
        refresh = st.toggle("Refresh", value=True, key="refresh", help="When off, the page does not update.")
    st.fragment(_moving, run_every=REFRESH_SECONDS if refresh else None)(run_id)


def _label(name: str, row: RunRow | None) -> str:
    if row is None:
        return "the newest run (follows)"
    trial = f" — {row.study}, trial {row.trial}" if row.study else ""
    return f"{row.id}{trial} — {row.outcome or row.state}"


def _moving(run_id: str) -> None:
    draw_guarded(lambda: _draw(run_id))


def _draw(run_id: str) -> None:
    rows = run_rows()
    row = next((row for row in rows if row.id == run_id), None) or _newest(rows)
    if row is None:
        nothing_yet("There are no runs yet.", "workbench train examples/train.yaml")
        return
    if _is_window(row.id):
        return
    records = thin_snapshot(row.id)
    state, ending, reason = runs.ending(records.status)
    header.header(records, state, ending, reason)
    header.stall(records if ending is None else None)
    view = runs.load(home() / row.id)
    summary = recent_summary_of(view)
    header.findings(summary, goes_on=view.summary is None)
    if summary is not None:
        quality.draw_trained(records.config, summary)
    _between_trials(records, row, study_rows(), follows=run_id == NEWEST)
    charts.charts(records, _linked_step(row.id))


def _newest(rows: list[RunRow]) -> RunRow | None:
    """That of a live study is the run that it tunes, not the last window of it."""
    windows = {row.study: (home() / STUDIES / row.study / RUNS).is_file() for row in rows if row.study}
    return next((row for row in rows if not (row.study and windows[row.study])), rows[0] if rows else None)


def _is_window(run: str) -> bool:
    """A window of a run that is tuned while it goes has no records of its own: it says where its steps are."""
    window = (run_folder.read_json(home() / run / run_folder.STATUS) or {}).get("window")
    if not window:
        return False
    first, end = window["first"], window["end"]
    steps = f"steps {first:,} to {end - 1:,}" if end > first else "no step"
    undone_text = ", which were undone" if window.get("undone") else ""
    st.info(f"{run} is a window of a longer run: {steps} of it{undone_text}.", icon=":material/view_column:")
    st.page_link(
        PAGES["Live"], label=f"{window['run']}, step {first:,}", icon=":material/monitoring:",
        query_params={"run": window["run"], "step": str(first)},
    )  # fmt: skip
    return True


def _linked_step(run: str) -> int | None:
    """The step that a link to this run names."""
    step = st.query_params.get("step")
    return int(step) if step and step.isdecimal() and st.query_params.get("run") == run else None


def _between_trials(records: Snapshot, row: RunRow, studies: list[StudyRow], *, follows: bool) -> None:
    study = next((study for study in studies if study.name == row.study), None)
    if not records.running and study is not None and study.state == "running":
        then = (
            "its next trial will appear here" if follows else "its trials appear at *the newest run*, above"
        )
        st.info(
            f"This run has ended; the study {words.escape(study.name)} is still running, and {then}.",
            icon=":material/hourglass_top:",
        )


if __name__ == "__main__":
    page()
