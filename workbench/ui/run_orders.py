"""What ranks write on request: how far it is while they are at it, and the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from engine.run.commands import SET
from workbench import orders, words
from workbench.orders import Waiting
from workbench.ui.shared import guarded, home, table

REFRESH_SECONDS = 1.0
SNAPSHOT = "snapshot"


def draw(found: dict[str, Any]) -> None:
    """Moves by itself while the run goes on."""
    going = found["state"] != "ended"
    st.fragment(_draw, run_every=REFRESH_SECONDS if going else None)(found["id"], going)


def _draw(run_id: str, going: bool) -> None:
    guarded(lambda: _parts(home() / run_id, going))


def _parts(folder: Path, going: bool) -> None:
    """Traces have a tab of their own for how far they are."""
    given = [one for one in orders.of_run(folder) if one.command != SET]
    waiting = orders.waiting(folder, SNAPSHOT)
    for one in waiting:
        if going:
            st.progress(one.fraction, f"Memory snapshot: {_far(one)}")
        else:
            st.caption(
                f":material/warning: The run ended with {one.answered} of {one.ranks} snapshots written."
            )
    if given:
        _table(given)
    elif not waiting:
        command = f"workbench control {folder.name} {SNAPSHOT}"
        st.caption(f"For a snapshot of each rank's memory while a run goes: `{command}`.")


def _far(order: Waiting) -> str:
    if order.first is None:
        return "asked; ranks begin two steps after they have seen it."
    if order.state == "recording":
        return f"recording {words.steps(order.first, order.steps)}, {order.done} of {order.steps} done."
    return f"{order.answered} of {order.ranks} ranks have written theirs."


def _table(given: list[orders.Answer]) -> None:
    st.markdown("**Written on request**")
    table(
        {
            "command": [row.command for row in given],
            "step": [row.step for row in given],
            "rank": [row.rank for row in given],
            "files": [", ".join(row.files) for row in given],
            "remark": [row.problem or row.note for row in given],
        },
        "run-orders",
        {"step": st.column_config.NumberColumn(format="%,d")},
    )
