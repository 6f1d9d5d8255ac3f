"""What few studies change: how trials race and are measured again, what proposes, and which studies came before."""

from __future__ import annotations

from typing import Any

import streamlit as st

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from tuning.execution import device_slices
from tuning.spec.study_file import StudyFile
from tuning.spec.terms import Racing
from workbench import words
from workbench.ui import forms, tune_environment
from workbench.ui.shared import study_rows, wrong_value

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


def advanced(config: RunConfig, ranks: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of a study file, by dotted names, where they are not the defaults; and what its space has beside."""
    with st.expander("Advanced", icon=":material/tune:", key="new-advanced"):
        found = forms.changed(StudyFile, forms.section(StudyFile, FIELDS, "new-study", COLUMNS))
        found |= _racing() | _side_by_side(config, ranks) | _inherit()
        return found, tune_environment.knobs(config, ranks)


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


def _side_by_side(config: RunConfig, ranks: int) -> dict[str, Any]:
    st.markdown("**Trials at once**")
    place, beside = st.columns([1, 2], vertical_alignment="bottom")
    asked = place.number_input(
        "Trials side by side",
        1,
        value=None,
        key="new-study-side-by-side",
        placeholder=forms.UNSET,
        help="So many at once, each on its own part of this host's devices. Baseline and confirmation run alone. "
        "(`side_by_side`)",
    )
    with beside:
        _room(asked or 1, config, ranks)
    return {"side_by_side": asked} if asked and asked > 1 else {}


def _room(asked: int, config: RunConfig, ranks: int) -> None:
    """What is wrong with so many at once on this host, or how many there can be."""
    try:
        if asked > 1:
            device_slices.slices(asked, ranks, config)
        found = device_slices.room(ranks, config)
    except InputError as error:
        if asked > 1:
            wrong_value(str(error))
        return
    most, there = found.most(ranks), f"this host has {words.several(len(found.devices), found.what)}"
    st.caption(f"At most {most} here: {there}, and a trial has {words.several(ranks, 'ranks')}.")


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
