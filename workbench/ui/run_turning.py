"""Values that change while a run goes: a form for the live keys, and what became of what was asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from engine.config.errors import InputError
from engine.run import commands, run_folder
from engine.validation import live_changes
from tuning.storage.commands import send
from workbench import orders as run_orders
from workbench import turning, words
from workbench.inputs import assignments
from workbench.ui.shared import guarded, home, pressed, table

REFRESH_SECONDS = 1.0


def draw(found: dict[str, Any]) -> None:
    """Moves by itself while the run goes on."""
    going = found["state"] != "ended"
    if going or found["changes"]:
        st.fragment(_draw, run_every=REFRESH_SECONDS if going else None)(found["id"], going)


def _draw(run_id: str, going: bool) -> None:
    guarded(lambda: _parts(home() / run_id, going))


def _parts(folder: Path, going: bool) -> None:
    st.markdown("**Changed while it goes**" if going else "**Changed while it went**")
    if going:
        _form(folder)
    answers = run_orders.of_run(folder)
    _asked(folder, {answer.id: answer for answer in reversed(answers) if answer.command == commands.SET})


def _form(folder: Path) -> None:
    config = turning.current(folder)
    with st.form("turn", border=False), st.container(horizontal=True, vertical_alignment="bottom"):
        key = st.selectbox(
            "Key",
            sorted(live_changes.LIVE),
            key="turn-key",
            width=260,
            format_func=lambda one: f"{one} (now {words.value(live_changes.value_of(config, one))})",
        )
        text = st.text_input("New value", key="turn-value", width=160)
        clicked = pressed(st.form_submit_button, "Change on all ranks", "turn-send", icon=":material/tune:")
    if clicked:
        _send(folder, key, text)


def _send(folder: Path, key: str, text: str) -> None:
    """What can be known to be illegal is said at once and not sent."""
    try:
        values = assignments([f"{key}={text}"])
        turning.check(folder, values)
        send(folder, commands.SET, values, by="page")
    except InputError as error:
        st.error(str(error), icon=":material/error:")


def _asked(folder: Path, answers: dict[str, run_orders.Answer]) -> None:
    """Every change that was asked for, the newest first, with what became of it."""
    rows = []
    for path in sorted((folder / run_folder.COMMANDS).glob("*.json"), reverse=True):
        asked = run_folder.read_json(path) or {}
        if asked.get("command") == commands.SET:
            answer = answers.get(path.stem)
            wanted = ", ".join(f"{key}={value}" for key, value in (asked.get("arguments") or {}).items())
            rows.append((wanted, asked.get("by"), answer))
    if rows:
        table(
            {
                "asked for": [wanted for wanted, _, _ in rows],
                "by": [by for _, by, _ in rows],
                "step": [answer and answer.step for _, _, answer in rows],
                "what became of it": [_became(answer) for _, _, answer in rows],
            },
            "run-turned",
            {"step": st.column_config.NumberColumn(format="%,d")},
        )


def _became(answer: run_orders.Answer | None) -> str:
    if answer is None:
        return "ranks have not come to it"
    return f"refused: {answer.problem}" if answer.problem else answer.told
