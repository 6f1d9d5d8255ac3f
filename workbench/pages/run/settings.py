"""What a run was asked to do: its schedule, environment variables and configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine.config.errors import InputError
from engine.config.run_config import RunConfig, flatten, parse
from engine.run.run_folder import ForeignJob
from profilers.model.run_summary import RunSummary
from workbench.figures.anatomy.schedule import ScheduleSeries, path_columns, schedule, series_of_run
from workbench.pages.widgets.common import icon_note, number_table, table
from workbench.pages.widgets.plotly_chart import shared_chart
from workbench.text import run as run_text
from workbench.text import words

#: More bars than a browser draws at once.
MOST_ACTIONS = 4_000
#: Schedules that are remembered.
_REMEMBERED = 16


def draw_schedule(config: Mapping[str, Any]) -> None:
    """Nothing where there is one stage."""
    text = json.dumps(config, sort_keys=True)
    series = _schedule_series(text)
    if series is None:
        return
    if len(series.bars) > MOST_ACTIONS:
        st.caption(f"The schedule has {len(series.bars):,} actions, too many to draw here.")
        return
    alt_text = "Pipeline schedule: actions of each rank over time"
    shared_chart(lambda: schedule(series), "run-schedule", alt_text, text)
    st.caption(
        "Drawn from the lists that the ranks executed, with a backward twice as long as a forward; measured seconds "
        "are above."
    )
    if series.paths:
        st.markdown("**Paths of micro-batches**")
        table(path_columns(series), "run-schedule-paths")


@st.cache_resource(max_entries=_REMEMBERED, show_spinner=False)
def _schedule_series(config: str) -> ScheduleSeries | None:
    """None where nothing can be drawn."""
    try:
        return series_of_run(parse(json.loads(config)))
    except (InputError, ValueError, KeyError):
        return None


def draw_environment(summary: RunSummary) -> None:
    """The variables that were asked for, and whether they took effect; nothing where none was asked for."""
    if summary.environment:
        st.markdown("**Environment of the ranks**")
        number_table(run_text.environment_columns(summary.environment), "run-environment-table")


def draw_job(job: ForeignJob) -> None:
    """What is known of a foreign job: how it was started, and its variables without secrets."""
    st.markdown("**Foreign job**")
    st.code(shlex.join(job.command), language="bash", wrap_lines=True)
    st.caption(
        f"Started in {words.code(str(job.directory))} on {words.escape(job.host)}. It has no configuration of ours."
    )
    for note in job.notes:
        icon_note("info", note)
    variables = job.environment
    if variables:
        table({"variable": list(variables), "value": list(variables.values())}, "run-job-variables")


def draw_configuration(config: Mapping[str, Any]) -> None:
    """What differs from the defaults first; the exact file on request."""
    flat, usual = flatten(dict(config)), RunConfig().flat()
    changed_values = {key: value for key, value in flat.items() if usual.get(key) != value}
    st.markdown("**Settings that differ from the defaults**")
    if changed_values:
        values = [words.value(value) for value in changed_values.values()]
        defaults = [words.value(usual.get(key)) for key in changed_values]
        table({"key": list(changed_values), "value": values, "default": defaults}, "run-changed")
    else:
        st.caption("None: every value is the default.")
    with st.expander("Full configuration"):
        st.json(dict(config), expanded=2)
