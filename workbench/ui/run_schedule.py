"""The order of pipeline work that a run's ranks executed, drawn from the same lists."""

from __future__ import annotations

from typing import Any

import streamlit as st

from engine.config.errors import InputError
from engine.config.run_config import parse
from workbench.schedule_figures import schedule
from workbench.schedule_series import series_of_run
from workbench.ui.chart import chart

#: More bars than a browser draws at once.
MOST_ACTIONS = 4_000


def draw(found: dict[str, Any]) -> None:
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
