"""What few studies change: how trials race and are measured again, what proposes, and which studies came before."""

from __future__ import annotations

from typing import Any

import streamlit as st

from tuning.studyfile import StudyFile
from tuning.terms import Racing
from workbench.ui import forms
from workbench.ui.shared import study_rows

#: As the study file has them; None: its own default.
FIELDS = {
    "sampler": None,
    "prior": None,
    "seed": None,
    "confirm_repeats": None,
    "confirm_runners_up": None,
    "loss_guard.threshold": None,
}
RACING = {"settle": None, "least_steps": None, "spread": None}
COLUMNS = 3


def advanced() -> dict[str, Any]:
    """Keys of a study file, by dotted names, where they are not the defaults."""
    with st.expander("Advanced", icon=":material/tune:", key="new-advanced"):
        found = forms.changed(StudyFile, forms.section(StudyFile, FIELDS, "new-study", COLUMNS))
        return found | _racing() | _inherit()


def _racing() -> dict[str, Any]:
    st.markdown("**Racing**")
    races = st.toggle(
        "Trials that cannot win any more, or whose steps have settled, end early",
        True,
        key="new-study-racing",
        help="Off, every trial takes all its steps. (`racing`)",
    )
    if not races:
        return {"racing": False}
    found = forms.changed(Racing, forms.section(Racing, RACING, "new-racing", COLUMNS))
    return {"racing": found} if found else {}


def _inherit() -> dict[str, Any]:
    names = [row.name for row in study_rows()]
    if not names:
        return {}
    chosen = st.multiselect(
        "Earlier studies to learn from",
        names,
        key="new-study-inherit",
        placeholder=forms.UNSET,
        help="The same question on the same machine: their trials count for the sampler. Otherwise their best points "
        "are measured first. (`inherit`)",
    )
    return {"inherit": chosen} if chosen else {}
