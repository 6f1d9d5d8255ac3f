"""A point by hand: one choice per knob of the study's space, sent to its owner."""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st

from engine.config.errors import InputError
from tuning.space.knobs import Knob
from tuning.space.space import Space
from tuning.storage.commands import send
from tuning.storage.study_folder import StudyView
from workbench import words
from workbench.ui import asked
from workbench.ui.shared import pressed

COLUMNS = 4


def form(view: StudyView) -> None:
    """Choices as they stand in the best trial so far; what the owner answers is shown above."""
    if view.file is None or not view.alive:
        return
    space = view.file.search_space
    with st.expander("Add a point by hand", icon=":material/add_circle:", key="by-hand"):
        follows = f"dp follows from {view.file.ranks} ranks / (tp x pp x cp). " if view.file.ranks > 1 else ""
        st.caption(f"{follows}The owner answers above.")
        with st.form("enqueue", border=False):
            values = _choices(view, space)
            if pressed(st.form_submit_button, "Enqueue", "enqueue-send", icon=":material/playlist_add:"):
                _send(view, space, values)


def _choices(view: StudyView, space: Space) -> dict[str, Any]:
    start = _start(view, space)
    columns = st.columns(COLUMNS)
    return {
        knob.key: _choice(columns[place % COLUMNS], knob, start.get(knob.key), view.name)
        for place, knob in enumerate(space.knobs)
    }


def _start(view: StudyView, space: Space) -> dict[str, Any]:
    known = [trial for trial in view.journal.trials if trial.value is not None]
    best = max(known, key=lambda trial: trial.value or 0.0, default=None)
    return best.config if best else space.baseline[0]


def _choice(column: Any, knob: Knob, now: Any, study: str) -> Any:
    key, label = f"by-hand-{study}-{knob.key}", words.short(knob.key)
    if knob.is_range:
        step = 1 if knob.integer else None
        inside = now if knob.contains(now) else knob.low
        return column.number_input(label, knob.low, knob.high, inside, step, key=key, help=knob.key)
    options = list(knob.grid())
    place, spoken = options.index(now) if now in options else 0, partial(words.choice, knob.key)
    return column.selectbox(label, options, place, format_func=spoken, key=key, help=knob.key)


def _send(view: StudyView, space: Space, values: dict[str, Any]) -> None:
    """Only the values that act at this point are named, so that the answer is easy to read."""
    try:
        point = space.completed(values)
    except InputError as error:
        st.error(str(error), icon=":material/error:")
        return
    sent = send(view.folder, "enqueue", point, by="page")
    asked.remember(view.name, sent, f"enqueue {words.point(point)}")
