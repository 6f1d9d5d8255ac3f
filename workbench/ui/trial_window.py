"""Which of a study's thousands of trials a table shows, and all of them to download."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from workbench import trial_list
from workbench.trial_list import Row
from workbench.ui.studies import study


def chosen(rows: Sequence[Row], key: str) -> list[Row]:
    """The rows that were chosen above the table; all of a short list, without a choice."""
    if len(rows) <= trial_list.SHOWN:
        return list(rows)
    with st.container(horizontal=True, vertical_alignment="center", key=f"{key}-window"):
        choice = st.segmented_control(
            "Trials",
            trial_list.CHOICES,
            default=trial_list.NEWEST,
            required=True,
            key=f"{key}-choice",
            label_visibility="collapsed",
        )
        shown, said = trial_list.window(rows, choice or trial_list.NEWEST)
        st.caption(said)
    return shown


def download(name: str, key: str) -> None:
    """A button; the file is made when it is clicked. Not for a part of a page that is drawn again by itself."""
    st.download_button(
        "All trials as CSV",
        lambda: trial_list.as_csv(study(name).document),
        file_name=f"{name}-trials.csv",
        mime="text/csv",
        key=key,
        icon=":material/download:",
        type="tertiary",
        on_click="ignore",
    )
