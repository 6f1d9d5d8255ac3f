"""What a study was asked for, on a page: its budgets, its constraints, and the front of several objectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from workbench import front_figures, study_words
from workbench.front_series import front_series
from workbench.thinning import thinned_front
from workbench.ui.chart import chart
from workbench.ui.shared import table

SHOWN_BROKEN = 5


def terms(document: Mapping[str, Any], place: str) -> None:
    """Nothing for a study that has one objective, and neither constraints nor budgets; ``place`` begins the keys."""
    with st.container(key=f"{place}-terms"):
        if budget := study_words.budget(document):
            st.caption(f":material/hourglass_bottom: Budget: {budget}.")
        _constraints(document)
        _front(document, place)


def _constraints(document: Mapping[str, Any]) -> None:
    if kept := study_words.kept(document):
        st.caption(f":material/check: The best keeps every constraint: {kept}.")
    broken = study_words.constraints(document)
    for line in broken[:SHOWN_BROKEN]:
        st.caption(f":material/block: {line}")
    if len(broken) > SHOWN_BROKEN:
        st.caption(f"and {len(broken) - SHOWN_BROKEN} more, in the table of trials")


def _front(document: Mapping[str, Any], place: str) -> None:
    found = front_series(document)
    if not found:
        return
    st.markdown("**Front of the objectives**")
    if document.get("pareto_note"):
        st.caption(f":material/info: {document['pareto_note']}")
    drawn = [thinned_front(series) for series in found]
    for column, series in zip(st.columns(min(2, len(found))) * len(found), drawn, strict=False):
        with column:
            key = f"{place}-front-{series.across.name.replace('_', '-')}"
            words = f"{series.upwards.unit} against {series.across.unit} of each trial"
            chart(front_figures.front(series, str(document.get("study"))), key, words)
            if series.note:
                st.caption(series.note)
    table(study_words.front(document), f"{place}-front-table")
