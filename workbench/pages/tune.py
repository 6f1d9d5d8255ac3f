"""Page Tune: start a study from a form, watch its trials arrive, and steer it."""

from __future__ import annotations

import streamlit as st

from workbench.pages.study import new, progress
from workbench.pages.widgets.common import draw_guarded, restore_choice, save_choice, study_rows
from workbench.pages.widgets.forms import keep_typed
from workbench.pages.widgets.heading import heading

WATCH, NEW = "watch", "new"
VIEWS = {WATCH: ":material/monitoring: Watch", NEW: ":material/add: New study"}


def page() -> None:
    """One of two views."""
    title, switch = st.columns([2, 1], vertical_alignment="bottom")
    with title:
        heading("Tune", "A study measures configurations and searches for the fastest.")
    _follow_a_started_study()
    restore_choice("view", list(VIEWS), WATCH if study_rows() else NEW)
    switch = switch.container(horizontal=True, horizontal_alignment="right")
    view = switch.segmented_control(
        "View",
        list(VIEWS),
        required=True,
        key="view",
        format_func=VIEWS.__getitem__,
        label_visibility="collapsed",
    )
    save_choice("view", view or WATCH)
    if view != NEW:
        keep_typed()
    draw_guarded(new.form if view == NEW else progress.watch)


def _follow_a_started_study() -> None:
    """Turn to the study that the form has just started; its widgets are drawn only after this."""
    study = st.session_state.pop("started", None)
    if study:
        st.session_state["view"] = WATCH
        st.session_state["study"] = study
        save_choice("view", WATCH)
        save_choice("study", study)


if __name__ == "__main__":
    page()
