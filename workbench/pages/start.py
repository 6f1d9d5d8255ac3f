"""Page Start: what runs, who leads, what is tried now, how long it takes, what is wrong, and where to look."""

from __future__ import annotations

import streamlit as st

from tuning.spec.objectives import text
from tuning.storage.study_folder import StudyView
from workbench.analysis.overview import CurrentRun, CurrentStudy, Overview, Problem, overview
from workbench.analysis.studies import StudyDocument
from workbench.pages.navigation import PAGES
from workbench.pages.widgets import trial_table
from workbench.pages.widgets.common import (
    badge,
    draw_guarded,
    home,
    nothing_yet,
    run_rows,
    show_store_note,
    study_rows,
)
from workbench.pages.widgets.heading import heading
from workbench.terminal import overview as overview_text
from workbench.text import words
from workbench.text.tile_help import find_help

REFRESH_SECONDS = 2.0
#: Of the machine only the disk is a problem: *Make room* is on Runs.
_LOOK = {"run": ("Runs", "id"), "study": ("Tune", "study"), "machine": ("Runs", "id")}


def page() -> None:
    """A headline, then a card for each thing that goes on, then what is wrong."""
    _old_links()
    heading(
        "Start",
        "Training is tried with different parallel layouts and settings; this page says which is fastest so far.",
    )
    show_store_note()
    st.fragment(_moving, run_every=REFRESH_SECONDS)()


def _old_links() -> None:
    """Links to a run or a study led here, when the first page was that of runs."""
    linked = st.query_params.get("id")
    if linked:
        st.switch_page(PAGES["Runs"], query_params={"id": linked})


def _moving() -> None:
    draw_guarded(_draw)


def _load(name: str) -> tuple[StudyView, StudyDocument]:
    snapshot = trial_table.study(name)
    return snapshot.view, snapshot.document


def _draw() -> None:
    summary = overview(home(), run_rows(), study_rows(), _load)
    if not summary.run_count and not summary.study_count:
        nothing_yet("Nothing has run here yet.", "workbench tune examples/quickstart.yaml")
        return
    st.header(overview_text.headline(summary), anchor=False)
    for study in summary.studies:
        _study(study)
    for run in summary.runs:
        _run(run)
    if summary.last is not None:
        _study(summary.last)
    _problems(summary.problems)
    _draw_counts(summary)


def _study(study: CurrentStudy) -> None:
    key = f"start-study-{words.identifier(study.name)}"
    with st.container(border=True, key=key):
        with st.container(horizontal=True, vertical_alignment="center"):
            badge(study.state)
            st.markdown(f"**{words.escape(study.name)}**", width="content")
            st.caption(words.escape(overview_text.study_progress(study)), width="content")
        if study.trials_total:
            st.progress(min(1.0, study.trials_done / study.trials_total))
        leader_column, trials_column, links_column = st.columns([2, 2, 1.2])
        with leader_column:
            label = f"Best{' so far' if study.state == 'running' else ''}, {study.unit}"
            st.metric(label, text(study.leader_value), help=find_help(label))
            st.caption(words.escape(study.leader or "nothing measured yet"))
            if study.gain_line:
                st.caption(words.escape(f"{study.gain_line[:1].upper()}{study.gain_line[1:]}."))
        with trials_column:
            _now(study)
        with links_column:
            _links(study)


def _now(study: CurrentStudy) -> None:
    st.markdown("**Tried now**" if study.state == "running" else "**Ended**")
    if study.state != "running":
        st.caption("The search is over; the best is on the left, and why it wins is on the page Tune.")
    elif study.now:
        st.markdown(words.escape(overview_text.current_trial_text(study)))
    else:
        st.caption("The next configuration is being chosen.")
    if study.failed:
        st.caption(
            f":material/report: {words.several(study.failed, 'trials')} failed; the page Tune says why."
        )


def _links(study: CurrentStudy) -> None:
    query = {"study": study.name}
    st.page_link(PAGES["Tune"], label="All trials, and why", icon=":material/tune:", query_params=query)
    runs = [trial.run for trial in study.now if trial.run and (home() / trial.run).is_dir()]
    if runs:
        st.page_link(
            PAGES["Live"], label="Watch it train", icon=":material/monitoring:", query_params={"run": runs[0]}
        )
    if study.leader is not None:
        st.page_link(
            PAGES["Export"],
            label="Use the best",
            icon=":material/ios_share:",
            query_params={"export": study.name},
        )


def _run(run: CurrentRun) -> None:
    with st.container(border=True, key=f"start-run-{run.id}"):
        with st.container(horizontal=True, vertical_alignment="center"):
            badge("running")
            st.markdown(f"**{words.escape(run.id)}**", width="content")
            st.caption(words.escape(overview_text.run(run)), width="content")
            st.page_link(
                PAGES["Live"],
                label="Watch it train",
                icon=":material/monitoring:",
                query_params={"run": run.id},
            )
        if run.share_done is not None:
            st.progress(run.share_done)


def _problems(problems: list[Problem]) -> None:
    if not problems:
        st.caption(":material/check_circle: Nothing else asks for attention.")
        return
    st.markdown("**What is wrong**")
    for problem in problems:
        page, parameter = _LOOK[problem.kind]
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f":material/error: {words.escape(problem.text)}", width="stretch")
            st.page_link(
                PAGES[page],
                label=problem.remedy.capitalize(),
                icon=":material/arrow_forward:",
                query_params={parameter: problem.id} if problem.id else None,
            )


def _draw_counts(summary: Overview) -> None:
    with st.container(horizontal=True, vertical_alignment="center", key="start-where"):
        st.caption(words.escape(overview_text.counts(summary)), width="content")
        st.page_link(PAGES["Runs"], label="All of them", icon=":material/list:")
        st.page_link(
            PAGES["Tune"], label="Start a study", icon=":material/add:", query_params={"view": "new"}
        )


if __name__ == "__main__":
    page()
