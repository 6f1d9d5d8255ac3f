"""What failed in a study, and why: endings with their reasons, and the settings that lead to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from workbench import words
from workbench.ui.shared import table

SHOWN_NUMBERS = 20
_ABOUT = {
    "configuration": "the configuration",
    "outside": "something outside",
    "chance": "chance, or the configuration",
}


def what_failed(document: Mapping[str, Any]) -> None:
    """Endings by how often, then rules in words; where nothing failed, that."""
    failures = document.get("failures") or {}
    endings: Sequence[Mapping[str, Any]] = failures.get("endings") or []
    st.markdown("**What failed, and why**")
    if not endings:
        st.caption(f"{failures.get('line', 'no trial has failed').capitalize()}.")
        return
    st.caption(words.escaped(f"{failures['line']}."))
    for rule in failures.get("rules") or []:
        st.markdown(f":material/rule: {words.escaped(rule['words'])}")
    table(failed_columns(endings), "study-failures", _columns())


def _columns() -> dict[str, Any]:
    """Widths in pixels that leave most of a narrow page to the reason."""
    widths = {"ending": 112, "trials": 46, "tried again": 76, "phase": 76, "ranks": 60, "speaks of": 112}
    return {name: st.column_config.Column(width=width) for name, width in widths.items()} | {
        "numbers": st.column_config.TextColumn(width=84),
        "reason": st.column_config.TextColumn(width=640),
    }


def failed_columns(endings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The table, a row for each ending, phase and kind of cause."""
    return {
        "ending": [words.spoken(row["outcome"]) for row in endings],
        "trials": [row["count"] for row in endings],
        "tried again": [row["tried_again"] or None for row in endings],
        "phase": [words.spoken(row["phase"]) if row["phase"] else None for row in endings],
        "ranks": [words.ranks(row["ranks"]) or None for row in endings],
        "speaks of": [_ABOUT.get(row["about"], row["about"]) for row in endings],
        "numbers": [_some(row["trials"]) for row in endings],
        "reason": [row["reason"] for row in endings],
    }


def _some(numbers: Sequence[int]) -> str:
    """The first few of thousands; ``--json`` has all."""
    more = f" and {len(numbers) - SHOWN_NUMBERS:,} more" if len(numbers) > SHOWN_NUMBERS else ""
    return ", ".join(map(str, numbers[:SHOWN_NUMBERS])) + more
