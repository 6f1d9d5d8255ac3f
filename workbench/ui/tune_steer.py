"""Steering a study from its page: where it goes now, what was asked of it by whom, and a form to ask for more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from tuning.space.knobs import Knob
from tuning.spec.sampler_choice import ASKED
from tuning.storage import mask
from tuning.storage.commands import send
from tuning.storage.study_folder import StudyView
from workbench import words
from workbench.ui import asked, tune_budget, tune_knobs
from workbench.ui.shared import pressed, table

SHOWN_EVENTS = 50
_BUDGETS = {"seconds": "s of trials", "gpu_hours": "GPU-hours"}


def course(document: Mapping[str, Any]) -> None:
    """Sampler with its reason, mask, budget and history in a few quiet lines; then every command so far."""
    sampler = document.get("sampler") or {}
    if not sampler:
        return
    known = document.get("budget_settings") or {}
    named = _BUDGETS | {"money": (document.get("price") or {}).get("currency", "of money")}
    budget = ", ".join(f"{words.value(value)} {named.get(name, name)}" for name, value in known.items())
    st.caption(f":material/explore: Sampler **{sampler['name']}** ({sampler['reason']}) · budget: {budget}")
    for earlier in document.get("inherited") or []:
        st.caption(f":material/history: {earlier['words']}")
    if document.get("continues"):
        st.caption(f":material/fork_right: continues {', '.join(document['continues'])}, with all trials")
    if document.get("mask"):
        kept = "; ".join(
            f"{words.short(key)}: {_values(key, left)}" for key, left in document["mask"].items()
        )
        st.caption(f":material/filter_alt: proposals keep to {kept}")
    _events(document.get("steering") or [])


def _values(key: str, left: Any) -> str:
    if isinstance(left, dict):
        return f"{words.value(left['low'])} to {words.value(left['high'])}"
    return ", ".join(words.choice(key, value) for value in left)


def _events(events: list[Mapping[str, Any]]) -> None:
    if not events:
        return
    newest = events[::-1][:SHOWN_EVENTS]
    with st.expander(f"Commands so far ({len(events)})", icon=":material/history:", key="steering"):
        table(
            {
                "when": [
                    time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(event["at_unix"])) for event in newest
                ],
                "by": [event["by"] for event in newest],
                "command": [_said(event) for event in newest],
                "answer": ["accepted" if event["accepted"] else "refused" for event in newest],
                "reason": [event["reason"] for event in newest],
            },
            key="steering-table",
        )


def _said(event: Mapping[str, Any]) -> str:
    given = " ".join(f"{key}={_given(key, value)}" for key, value in event["arguments"].items())
    return f"{event['command']} {given}".strip()


def _given(key: str, value: Any) -> str:
    return ",".join(words.choice(key, one) for one in (value if isinstance(value, list) else [value]))


def form(view: StudyView) -> None:
    """What to keep to, for how long, and with which sampler; the owner answers above."""
    if view.file is None or not view.alive:
        return
    with st.expander("Steer the search", icon=":material/explore:", key="steer"):
        st.caption("What is masked is not proposed; it is never told as a failure. The owner answers above.")
        limited, sampler = st.columns([3, 1], vertical_alignment="bottom", gap="large")
        with limited:
            _mask(view, list(view.file.search_space.knobs))
        with sampler:
            _sampler(view)
        st.markdown("**Budgets and confirmation**")
        if asked_for := tune_budget.form(view.file):
            _send(view, "budget", asked_for)


def _mask(view: StudyView, knobs: list[Knob]) -> None:
    by_key = {knob.key: knob for knob in knobs}
    which, values = st.columns(2, vertical_alignment="bottom")
    key = which.selectbox("Knob", list(by_key), format_func=words.short, key="steer-knob")
    with values:
        left = _ends(by_key[key]) if by_key[key].is_range else _some(by_key[key])
    with st.container(horizontal=True, key="steer-buttons"):
        look = {"disabled": not left}
        if pressed(st.button, "Keep to these", "steer-narrow", icon=":material/filter_alt:", **look):
            _send(view, "narrow", {key: left})
        if pressed(st.button, "Open these too", "steer-widen", icon=":material/open_in_full:", **look):
            _send(view, "widen", {key: left})
        if pressed(st.button, "All again", "steer-all", icon=":material/filter_alt_off:"):
            _send(view, "unpin", {key: mask.ALL})


def _ends(knob: Knob) -> str:
    low, high = st.columns(2)
    name = words.identifier(knob.key)
    ends = (
        low.number_input("From", value=float(knob.low or 0.0), format="%g", key=f"steer-low-{name}"),
        high.number_input("to", value=float(knob.high or 0.0), format="%g", key=f"steer-high-{name}"),
    )
    whole = [int(end) if knob.integer else end for end in ends]
    return f"{whole[0]}{mask.SEPARATOR}{whole[1]}"


def _some(knob: Knob) -> list[Any]:
    chosen = st.multiselect(
        "Values",
        list(knob.grid()),
        format_func=partial(words.choice, knob.key),
        key=f"steer-values-{knob.key}",
        accept_new_options=True,
        wrap=True,
        help="One that was not declared can be typed in and opened: the study then goes on as a linked successor.",
    )
    return [tune_knobs.number(item) for item in chosen]


def _sampler(view: StudyView) -> None:
    name = st.selectbox("Sampler", ASKED, key=f"steer-sampler-{view.name}")
    if pressed(st.button, "Use it", "steer-sampler", icon=":material/casino:"):
        _send(view, "sampler", {"name": name})


def _send(view: StudyView, command: str, arguments: dict[str, Any]) -> None:
    sent = send(view.folder, command, arguments, by="page")
    asked.remember(view.name, sent, _said({"command": command, "arguments": arguments}))
