"""Budgets of a study that goes on, and how its winner is confirmed: one field each, and one button."""

from __future__ import annotations

from typing import Any, NamedTuple

import streamlit as st

from tuning.spec.study_file import StudyFile
from workbench.ui import forms
from workbench.ui.shared import pressed

COLUMNS = 3


class Limit(NamedTuple):
    """One that can be changed: its name in the command, what stands in it now, and its smallest value."""

    name: str
    label: str
    now: float | None
    low: float


def limits(file: StudyFile) -> list[Limit]:
    """All that this study can have; money only with a price."""
    asked = file.budget
    found = [
        Limit("trials", "Trials", file.trials, 1),
        Limit("seconds", "Seconds of trials, in all", file.budget_seconds, 1.0),
        Limit("gpu_hours", forms.LABELS["gpu_hours"], asked.gpu_hours if asked else None, 0.0),
    ]
    if file.price is not None:
        found.append(Limit("money", f"Money, {file.price.currency}", asked.money if asked else None, 0.0))
    return [
        *found,
        Limit("confirm_repeats", forms.LABELS["confirm_repeats"], file.confirm_repeats, 0),
        Limit("confirm_runners_up", forms.LABELS["confirm_runners_up"], file.confirm_runners_up, 0),
    ]


def form(file: StudyFile) -> dict[str, Any]:
    """What is asked for with this click: the limits that were changed; nothing without one."""
    places = st.columns(COLUMNS)
    known = limits(file)
    wanted = {each.name: _field(places[place % COLUMNS], each, file.name) for place, each in enumerate(known)}
    changed = {each.name: wanted[each.name] for each in known if wanted[each.name] not in (None, each.now)}
    clicked = pressed(
        st.button, "Change the budget", "steer-budget", icon=":material/timer:", disabled=not changed
    )
    return changed if clicked else {}


def _field(place: Any, limit: Limit, study: str) -> Any:
    whole = isinstance(limit.low, int)
    return place.number_input(
        limit.label,
        limit.low,
        None,
        limit.now,
        1 if whole else None,
        "%d" if whole else "%g",
        key=f"steer-{limit.name.replace('_', '-')}-{study}",
        placeholder=forms.UNSET,
    )
