"""The environment variables that a run asked for, what libraries used of them, and whether that is proven."""

from __future__ import annotations

from typing import Any

import streamlit as st

from workbench import words
from workbench.ui.shared import table


def draw(found: dict[str, Any]) -> None:
    """Nothing where none was asked for."""
    rows = found.get("environment") or []
    if not rows:
        return
    st.markdown("**Environment of the ranks**")
    table(
        {
            "setting": [row["name"] for row in rows],
            "asked": [row["asked"] for row in rows],
            "seen in the process": [row["seen"] for row in rows],
            "used by the library": [row["used"] for row in rows],
            "took effect": [row["proven"] for row in rows],
            "how that is known": [row["how"] for row in rows],
            "ranks": [words.ranks(row["ranks"]) for row in rows],
        },
        "run-environment-table",
    )
