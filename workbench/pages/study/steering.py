"""Steering a study from its page: where it goes now, budgets and confirmation, a point by hand, and what was asked of
it by whom.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import streamlit as st

from engine.config.errors import InputError
from tuning.report.study_result import StudyResult
from tuning.space.knobs import Knob
from tuning.space.space import Space
from tuning.spec.sampler_choice import names as sampler_names
from tuning.spec.study_file import StudyFile
from tuning.storage import effective_config
from tuning.storage.commands import send
from tuning.storage.effective_config import SteeringEvent
from tuning.storage.study_folder import StudyView
from workbench.pages.study import new_knobs
from workbench.pages.widgets import forms
from workbench.pages.widgets.common import button_pressed, may_fill_in, table
from workbench.text import words

BUDGET_COLUMNS = 3


class Limit(NamedTuple):
    """One that can be changed: its name in the command, what stands in it now, and its smallest value."""

    name: str
    label: str
    current: float | None
    low: float


def limits(file: StudyFile) -> list[Limit]:
    """All that this study can have; money only with a price."""
    budget = file.budget
    rows = [
        Limit("trials", "Trials", file.trials, 1),
        Limit("seconds", "Seconds of all trials together", file.budget_seconds, 1.0),
        Limit("gpu_hours", forms.LABELS["gpu_hours"], budget.gpu_hours if budget else None, 0.0),
    ]
    if file.price is not None:
        rows.append(Limit("money", f"Money, {file.price.currency}", budget.money if budget else None, 0.0))
    return [
        *rows,
        Limit("confirm_repeats", forms.LABELS["confirm_repeats"], file.confirm_repeats, 0),
        Limit("confirm_runners_up", forms.LABELS["confirm_runners_up"], file.confirm_runners_up, 0),
        Limit("equal_within", forms.LABELS["equal_within"], file.equal_within, 0.0),
    ]


def budget_form(file: StudyFile) -> dict[str, Any]:
    """What is asked for with this click: the limits that were changed; nothing without one."""
    places = st.columns(BUDGET_COLUMNS)
    all_limits = limits(file)
    new_values = {
        limit.name: _field(places[place % BUDGET_COLUMNS], limit, file.name)
        for place, limit in enumerate(all_limits)
    }
    changes = {
        limit.name: new_values[limit.name]
        for limit in all_limits
        if new_values[limit.name] not in (None, limit.current)
    }
    is_clicked = button_pressed(
        st.button, "Change the budget", "steer-budget", icon=":material/timer:", disabled=not changes
    )
    return changes if is_clicked else {}


def _field(place: Any, limit: Limit, study: str) -> Any:
    is_integer = isinstance(limit.low, int)
    return place.number_input(
        limit.label,
        limit.low,
        None,
        limit.current,
        1 if is_integer else None,
        "%d" if is_integer else "%g",
        key=f"steer-{limit.name.replace('_', '-')}-{study}",
        placeholder=forms.UNSET,
    )


ENQUEUE_COLUMNS = 4


def enqueue_form(view: StudyView) -> None:
    """Choices as they stand in the best trial so far; what the owner answers is shown above."""
    if view.file is None or not view.alive:
        return
    space = view.file.search_space
    with st.expander("Add a point by hand", icon=":material/add_circle:", key="by-hand"):
        if not may_fill_in():
            return
        dp_note = f"dp is {view.file.ranks} ranks / (tp x pp x cp). " if view.file.ranks > 1 else ""
        st.caption(f"{dp_note}The study's answer appears above.")
        with st.form("enqueue", border=False):
            values = _choices(view, space)
            if button_pressed(
                st.form_submit_button, "Enqueue", "enqueue-send", icon=":material/playlist_add:"
            ):
                _send_points(view, space, values)


def _choices(view: StudyView, space: Space) -> dict[str, Any]:
    start = _start(view, space)
    columns = st.columns(ENQUEUE_COLUMNS)
    return {
        knob.key: _choice(columns[place % ENQUEUE_COLUMNS], knob, start.get(knob.key), view.name)
        for place, knob in enumerate(space.knobs)
    }


def _start(view: StudyView, space: Space) -> dict[str, Any]:
    measured_trials = [trial for trial in view.journal.trials if trial.value is not None]
    best = max(measured_trials, key=lambda trial: trial.value or 0.0, default=None)
    return best.config if best else space.baseline[0]


def _choice(column: Any, knob: Knob, value: Any, study: str) -> Any:
    key, label = f"by-hand-{study}-{knob.key}", words.short(knob.key)
    if knob.is_range:
        step = 1 if knob.integer else None
        start = value if knob.contains(value) else knob.low
        return column.number_input(label, knob.low, knob.high, start, step, key=key, help=knob.key)
    options = list(knob.grid())
    place, spoken = options.index(value) if value in options else 0, partial(words.choice, knob.key)
    return column.selectbox(label, options, place, format_func=spoken, key=key, help=knob.key)


def _send_points(view: StudyView, space: Space, values: dict[str, Any]) -> None:
    """Only the values that act at this point are named, so that the answer is easy to read."""
    try:
        point = space.complete(values)
    except InputError as error:
        st.error(words.escape(str(error)), icon=":material/error:")
        return
    sent_key = send(view.folder, "enqueue", point, by="page")
    forms.remember_command(view.name, sent_key, f"enqueue {words.point(point)}")


SHOWN_EVENTS = 50
_BUDGETS = {"seconds": "s of trials", "gpu_hours": "GPU-hours"}


def course(result: StudyResult) -> None:
    """Sampler with its reason, mask, budget and history in a few quiet lines; then every command so far."""
    sampler = result.sampler
    if not sampler:
        return
    units = _BUDGETS | {"money": result.price.currency if result.price else "of money"}
    budget = ", ".join(
        f"{words.value(value)} {units.get(name, name)}" for name, value in result.budget_settings.items()
    )
    st.caption(f":material/explore: Sampler **{sampler.name}** ({sampler.reason}) · budget: {budget}")
    for study in result.inherited:
        st.caption(f":material/history: {study.words}")
    if result.continues:
        st.caption(f":material/fork_right: continues {', '.join(result.continues)}, with all trials")
    if result.mask:
        mask_text = "; ".join(
            f"{words.short(key)}: {_values(key, masked_values)}" for key, masked_values in result.mask.items()
        )
        st.caption(f":material/filter_alt: the search is limited to {mask_text}")
    _events(result.steering)


def _values(key: str, masked_values: Any) -> str:
    if isinstance(masked_values, dict):
        return f"{words.value(masked_values['low'])} to {words.value(masked_values['high'])}"
    return ", ".join(words.choice(key, value) for value in masked_values)


def _events(events: list[SteeringEvent]) -> None:
    if not events:
        return
    newest = events[::-1][:SHOWN_EVENTS]
    with st.expander(f"Commands so far ({len(events)})", icon=":material/history:", key="steering"):
        table(
            {
                "when": [time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(event.at_unix)) for event in newest],
                "by": [event.by for event in newest],
                "command": [_command_text(event.command, event.arguments) for event in newest],
                "answer": ["accepted" if event.accepted else "refused" for event in newest],
                "reason": [event.reason for event in newest],
            },
            key="steering-table",
        )


def _command_text(command: str, arguments: Mapping[str, Any]) -> str:
    arguments_text = " ".join(f"{key}={_argument_text(key, value)}" for key, value in arguments.items())
    return f"{command} {arguments_text}".strip()


def _argument_text(key: str, value: Any) -> str:
    return ",".join(words.choice(key, item) for item in (value if isinstance(value, list) else [value]))


def steer_form(view: StudyView) -> None:
    """What to keep to, for how long, and with which sampler; the owner answers above."""
    if view.file is None or not view.alive:
        return
    with st.expander("Steer the search", icon=":material/explore:", key="steer"):
        if not may_fill_in():
            return
        st.caption(
            "Masked values are not proposed; they do not count as failures. The study's answer appears above."
        )
        mask_column, sampler = st.columns([3, 1], vertical_alignment="bottom", gap="large")
        with mask_column:
            if knobs := list(view.file.search_space.knobs):
                _mask(view, knobs)
            else:
                st.caption("This study turns nothing: its baseline is measured.")
        with sampler:
            _sampler(view)
        st.markdown("**Budgets and confirmation**")
        if asked_for := budget_form(view.file):
            _send_command(view, "budget", asked_for)
        _trial_buttons(view, view.file)


def _trial_buttons(view: StudyView, file: StudyFile) -> None:
    """To end what runs now, trial by trial, and to take a lossy leader's loss again where a run is tuned as it goes."""
    running = [trial.number for trial in view.journal.under_way]
    if not running and not (file.live and file.turns_lossy):
        return
    st.markdown("**Trials**")
    with st.container(horizontal=True, key="steer-trials"):
        for number in running:
            help_text = "It is ended at once, without a value; the study goes on with the next."
            if button_pressed(
                st.button,
                f"End trial {number}",
                f"steer-kill-{number}",
                icon=":material/cancel:",
                help=help_text,
            ):
                _send_command(view, "kill", {"trial": number})
        if file.live and file.turns_lossy:
            help_text = (
                "The held-out loss of the run as it is now, beside the exact baseline's on the same steps."
            )
            if button_pressed(
                st.button,
                "Take the leader's loss again",
                "steer-check",
                icon=":material/rule:",
                help=help_text,
            ):
                _send_command(view, "check", {})


def _mask(view: StudyView, knobs: list[Knob]) -> None:
    by_key = {knob.key: knob for knob in knobs}
    knob_column, value_column = st.columns(2, vertical_alignment="bottom")
    key = knob_column.selectbox("Knob", list(by_key), format_func=words.short, key="steer-knob")
    with value_column:
        values_left = _ends(by_key[key]) if by_key[key].is_range else _some(by_key[key])
    with st.container(horizontal=True, key="steer-buttons"):
        button_look = {"disabled": not values_left}
        if button_pressed(
            st.button, "Search only these values", "steer-narrow", icon=":material/filter_alt:", **button_look
        ):
            _send_command(view, "narrow", {key: values_left})
        if button_pressed(
            st.button,
            "Also search these values",
            "steer-widen",
            icon=":material/open_in_full:",
            **button_look,
        ):
            _send_command(view, "widen", {key: values_left})
        if button_pressed(
            st.button, "Search all values again", "steer-all", icon=":material/filter_alt_off:"
        ):
            _send_command(view, "unpin", {key: effective_config.ALL})


def _ends(knob: Knob) -> str:
    low, high = st.columns(2)
    name = words.identifier(knob.key)
    ends = (
        low.number_input("From", value=float(knob.low or 0.0), format="%g", key=f"steer-low-{name}"),
        high.number_input("to", value=float(knob.high or 0.0), format="%g", key=f"steer-high-{name}"),
    )
    rounded = [int(end) if knob.integer else end for end in ends]
    return f"{rounded[0]}{effective_config.SEPARATOR}{rounded[1]}"


def _some(knob: Knob) -> list[Any]:
    items = st.multiselect(
        "Values",
        list(knob.grid()),
        format_func=partial(words.choice, knob.key),
        key=f"steer-values-{knob.key}",
        accept_new_options=True,
        wrap=True,
        help="Type in a value that was not declared to add it: the study then continues as a linked successor.",
    )
    return [new_knobs.number(item) for item in items]


def _sampler(view: StudyView) -> None:
    name = st.selectbox("Sampler", sampler_names(), key=f"steer-sampler-{view.name}")
    if button_pressed(st.button, "Use it", "steer-sampler", icon=":material/casino:"):
        _send_command(view, "sampler", {"name": name})


def _send_command(view: StudyView, command: str, arguments: dict[str, Any]) -> None:
    sent_key = send(view.folder, command, arguments, by="page")
    forms.remember_command(view.name, sent_key, _command_text(command, arguments))
