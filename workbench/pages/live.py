"""Page Live: the run that is going now, drawn anew each second from its folder."""

from __future__ import annotations

import streamlit as st

from workbench.home import runs
from workbench.home.store import RunRow, StudyRow
from workbench.pages.run import live_charts, live_header
from workbench.pages.widgets.shared import (
    from_link,
    guarded,
    heading,
    home,
    nothing_yet,
    redraw_on_change,
    run_rows,
    snapshot,
    study_rows,
    summary_of,
    to_link,
    within_reach,
)
from workbench.records.live_snapshot import Snapshot

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
        options = [NEWEST, *within_reach("run", [row.id for row in rows])]
        by_id = {row.id: row for row in rows}
        from_link("run", options)
        chosen = st.selectbox(
            "Run", options, key="run", format_func=lambda name: _label(name, by_id.get(name))
        )
        to_link("run", chosen)
    with switch:
        refresh = st.toggle("Refresh", value=True, key="refresh", help="When off, the page does not update.")
    st.fragment(_moving, run_every=REFRESH_SECONDS if refresh else None)(chosen)


def _label(name: str, row: RunRow | None) -> str:
    if row is None:
        return "the newest run (follows)"
    trial = f" — {row.study}, trial {row.trial}" if row.study else ""
    return f"{row.id}{trial} — {row.outcome or row.state}"


def _moving(chosen: str) -> None:
    guarded(lambda: _draw(chosen))


def _draw(chosen: str) -> None:
    rows = run_rows()
    row = next((row for row in rows if row.id == chosen), rows[0] if rows else None)
    if row is None:
        nothing_yet("There are no runs yet.", "workbench train examples/train.yaml")
        return
    records = snapshot(row.id)
    live_header.header(records, *runs.ending(records.status)[:2])
    live_header.findings(summary_of(runs.load(home() / row.id)))
    _between_trials(records, row, study_rows())
    live_charts.charts(records)


def _between_trials(records: Snapshot, row: RunRow, studies: list[StudyRow]) -> None:
    study = next((study for study in studies if study.name == row.study), None)
    if not records.running and study is not None and study.state == "running":
        st.info(
            f"This run has ended; the study {study.name} is still running, and its next trial will appear here.",
            icon=":material/hourglass_top:",
        )


if __name__ == "__main__":
    page()
