"""The schedule of a run that has a pipeline: planned, simulated and measured, one under the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from engine.config.errors import InputError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig, parse
from engine.footprint.footprint import plan_of, skips_of
from engine.run import run_folder
from engine.schedules.actions import Costs, Plan, Work
from engine.schedules.simulate import simulate
from engine.schedules.skip_pipe import relative_sizes
from tuning.predict.simulation.simulate import simulate_config
from workbench.figures.anatomy.schedule import (
    TimedAction,
    TimedSeries,
    draw_timed,
    pipeline_actions,
    timed_series,
)
from workbench.home.calibrations import target_of
from workbench.pages.run.settings import MOST_ACTIONS
from workbench.pages.widgets.common import home, run_rows, snapshot
from workbench.pages.widgets.plotly_chart import chart
from workbench.records import archive
from workbench.text import words

#: A step in the middle has neither warm-up nor end.
_NEWEST_RUNS = 100
HELP = (
    "Planned: the list of actions at the costs that were measured, without any transfer. Simulated: the same with what "
    "this machine's calibration says of links, event by event. Measured: the actions of the first pipeline as they ran."
)


def draw() -> None:
    """Nothing to choose where no run has a pipeline."""
    rows = [row for row in run_rows() if (row.layout or {}).get("pp", 1) > 1][:_NEWEST_RUNS]
    st.header("Schedules", anchor=False, divider=True)
    if not rows:
        st.caption(
            "No run of this home has a pipeline: its schedule would be here, planned, simulated and measured."
        )
        return
    run_id = st.selectbox("Run with a pipeline", [row.id for row in rows], key="plan-schedule-run", width=420)
    _schedules(run_id)


def _schedules(run: str) -> None:
    config = _config(snapshot(run).config)
    if config is None:
        st.caption("The configuration of this run cannot be read.")
        return
    plan, skips = plan_of(config), skips_of(config)
    measured, step = _measured_series(run, config, plan)
    if measured is None or len(measured.bars) > MOST_ACTIONS:
        st.caption(
            "No schedule to draw: no step of this run has a record of every action of its first pipeline, or there are "
            "too many actions."
        )
        return
    simulated = _simulated_series(config, plan)
    series = [
        _planned_series(plan, measured, relative_sizes(plan, skips.layers) if skips else ()),
        *([simulated] if isinstance(simulated, TimedSeries) else []),
        measured,
    ]
    longest = max(drawn_series.milliseconds for drawn_series in series)
    for place, drawn_series in enumerate(series):
        chart(
            draw_timed(drawn_series, longest, f"{run}-{place}"),
            f"plan-schedule-{place}",
            f"{drawn_series.title}: actions of each rank",
        )
    st.caption(f":material/schedule: Step {step:,} of {run}.", help=HELP)
    if isinstance(simulated, str):
        st.caption(f":material/info: Not simulated: {words.escape(simulated)}.")


def _config(tree: Mapping[str, Any]) -> RunConfig | None:
    try:
        return parse(dict(tree))
    except (InputError, ValueError):
        return None


def _measured_series(run: str, config: RunConfig, plan: Plan) -> tuple[TimedSeries | None, int]:
    """Of the step in the middle of those whose actions were recorded."""
    records = archive.records(Path(home()) / run / run_folder.RECORDS)
    pipeline = layout_of(config).groups("pp")[0]
    steps = np.unique(np.ma.getdata(records.table(pipeline[0], "action").column("step")))
    if not len(steps):
        return None, 0
    step = int(steps[len(steps) // 2])
    actions = pipeline_actions(records, step, pipeline)
    return (timed_series("Measured", plan, actions), step) if actions else (None, step)


def _planned_series(plan: Plan, measured: TimedSeries, sizes: Sequence[float] = ()) -> TimedSeries:
    """At the median of what was measured of each kind of work, in seconds; of stages of several ``sizes``, of one of
    size 1.
    """

    def median(work: Work, default: float) -> float:
        bars = [bar for bar in measured.bars if bar.work is work]
        lengths = [bar.length / 1e3 / (sizes[bar.stage] if sizes else 1.0) for bar in bars]
        return float(np.median(lengths)) if lengths else default

    forward = median(Work.FORWARD, 0.0)
    backward = median(Work.BACKWARD, 0.0)
    costs = Costs(forward, backward, median(Work.INPUT, backward / 2), median(Work.WEIGHT, backward / 2))
    actions = [
        TimedAction(rank, action.work, action.micro_batch, action.stage, start, end - start)
        for rank, spans in enumerate(simulate(plan, costs, sizes).spans)
        for action, start, end in spans
    ]
    return timed_series("Planned", plan, actions)


def _simulated_series(config: RunConfig, plan: Plan) -> TimedSeries | str:
    """Of this machine; or why it cannot be."""
    try:
        target = target_of(home(), None, None, layout_of(config).world_size).adapt_to_config(config)
        simulation = simulate_config(config, target)
    except InputError as error:
        return error.remedy
    actions = [
        TimedAction(
            place,
            span.action.work,
            span.action.micro_batch,
            span.action.stage,
            span.start,
            span.end - span.start,
        )
        for place in range(plan.ranks)
        for span in simulation.spans(place * simulation.step.replicas)
    ]
    return timed_series("Simulated", plan, actions)
