"""The plans of compression that a run followed, and the values that the last one gives to layers."""

from __future__ import annotations

from typing import Any

import streamlit as st

from workbench import words
from workbench.ui.shared import table


def draw(found: dict[str, Any]) -> None:
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
