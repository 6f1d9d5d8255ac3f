"""What this browser asked of studies, kept until somebody answers."""

from __future__ import annotations

import time

import streamlit as st


def remember(study: str, command_id: str, said: str) -> None:
    """Keep a command of this browser."""
    st.session_state.setdefault("asked", {})[command_id] = (study, said, time.time())


def of_study(study: str) -> list[tuple[str, str, float]]:
    """Id, words and time of the commands to a study, the newest first."""
    asked = st.session_state.get("asked") or {}
    return [(key, said, at) for key, (name, said, at) in asked.items() if name == study][::-1]
