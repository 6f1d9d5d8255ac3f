"""The environment variables that a run asked for, what libraries used of them, and whether that is proven.

The plans of compression that a run followed, and the values that the last one gives to layers.

The order of pipeline work that a run's ranks executed, drawn from the same lists.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from engine.config.errors import InputError
from engine.config.run_config import parse
from workbench.figures.schedule import schedule, series_of_run
from workbench.pages.widgets.plotly_chart import chart
from workbench.pages.widgets.shared import table
from workbench.text import words


def draw_environment(found: dict[str, Any]) -> None:
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


def draw_plan(found: dict[str, Any]) -> None:
    """Nothing without a plan."""
    plans = found.get("plans") or []
    if not plans:
        return
    st.markdown("**Compression plan**")
    st.caption(f":material/compress: {words.plan(plans[-1])}.")
    numbers = st.column_config.NumberColumn
    table(
        {
            "from step": [row["step"] for row in plans],
            "MB per step": [_mega(row["bytes_after"]) for row in plans],
            "with one value, MB": [_mega(row["bytes_uniform"]) for row in plans],
            "error / budget": [_share(row["error"], row["budget"]) for row in plans],
            "planned in, s": [row["seconds"] for row in plans],
        },
        "run-plan-table",
        {
            "from step": numbers(format="%,d"),
            "MB per step": numbers(format="%,.3f", help="On the wire, by formula, of a rank."),
            "with one value, MB": numbers(format="%,.3f", help="With the same value for every layer."),
            "error / budget": numbers(
                format="%.3f", help="The sum of what layers lose; the budget comes from one value for all."
            ),
            "planned in, s": numbers(format="%,.2f"),
        },
    )
    _layers(plans[-1])


def _layers(last: dict[str, Any]) -> None:
    if last["layers"]:
        with st.expander(f"The values of {len(last['layers']):,} layers"):
            values = [f"{value:.3g}" for value in last["layers"].values()]
            table({"layer": list(last["layers"]), last["method"]: values}, "run-plan-layers", {})


def _mega(size: float | None) -> float | None:
    return None if size is None else size / 1e6


def _share(error: float | None, budget: float | None) -> float | None:
    return error / budget if error is not None and budget else None


#: More bars than a browser draws at once.
MOST_ACTIONS = 4_000


def draw_schedule(found: dict[str, Any]) -> None:
    """Nothing where there is one stage."""
    try:
        series = series_of_run(parse(found["config"] or {}))
    except (InputError, ValueError, KeyError):
        return
    if series is None:
        return
    if len(series.bars) > MOST_ACTIONS:
        st.caption(f"The schedule has {len(series.bars):,} actions, too many to draw here.")
        return
    chart(schedule(series), "run-schedule", "Pipeline schedule: actions of each rank over time")
    st.caption(
        "Drawn from the lists that the ranks executed, with a backward twice as long as a forward; measured seconds "
        "are above."
    )
