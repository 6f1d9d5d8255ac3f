"""The charts of the Live page. Their keys never change, so that a browser redraws them in place."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from profilers.analysis import machine
from profilers.records.schema import Event
from workbench.figures import base, gpu, steps
from workbench.pages.run import host
from workbench.pages.run.live_header import ranks_table
from workbench.pages.widgets.plotly_chart import chart
from workbench.records.live_snapshot import Snapshot

SLOWEST = "slowest"


def charts(seen: Snapshot) -> None:
    """Steps and ranks, collectives, loss, then host and GPUs."""
    left, right = st.columns([2.1, 1])
    with left:
        _phases(seen)
        drawn = steps.collective_series(seen.communication)
        chart(base.collectives(drawn, seen.id), "live-collectives", "Collectives per step and rank")
    with right:
        ranks_table(seen)
        losses = steps.loss_series(seen.steps, (seen.summary or {}).get("validation_loss"))
        chart(base.loss(losses, seen.id), "live-loss", "Training loss per step")
    left, right = st.columns(2)
    with left:
        ranks = base.ranks(steps.rank_series(seen.steps), seen.id)
        marks = steps.change_marks(seen.changes)
        chart(base.marked(ranks, marks), "live-rank-steps", "Step time by rank")
    with right:
        host.memory(seen, "live-memory")
    _machine(seen)


def _phases(seen: Snapshot) -> None:
    ranks = sorted(seen.steps)
    choice = st.segmented_control(
        "Rank",
        [SLOWEST, *(str(rank) for rank in ranks[: steps.RANKS])],
        default=SLOWEST,
        required=True,
        key="live-rank",
        format_func=lambda name: "slowest rank" if name == SLOWEST else f"rank {name}",
        label_visibility="collapsed",
    )
    if choice == SLOWEST or choice is None or int(choice) not in seen.steps:
        drawn = steps.phase_series(steps.slowest_rank(seen.steps), "the slowest rank of each step")
    else:
        drawn = steps.phase_series(seen.steps[int(choice)], f"rank {choice}")
    marks = steps.change_marks(seen.changes)
    chart(
        base.marked(base.phases(drawn, seen.id), marks),
        "live-phases",
        "Step time by phase, stacked bars per step",
    )


def _machine(seen: Snapshot) -> None:
    seen = host.of_chosen_host(seen, "live-host-choice")
    start = host.start_of(seen)
    host.processors(seen, "live")
    chart(base.host(steps.host_series(seen.host, start), seen.id), "live-host", "CPU and memory of the host")
    gpus = gpu.live_series(seen.gpu, start)
    if any(gpus):
        chart(gpu.live(gpus, seen.id), "live-gpu", gpu.live_label())
        gpu_troubles(seen)
    else:
        st.caption(f":material/memory: No GPU readings: {why_no_gpu(seen.launcher_events)}")
    for problem in seen.problems:
        st.caption(f":material/warning: {problem}")


def gpu_troubles(seen: Snapshot) -> None:
    """When the driver did not answer for a GPU, and whether it did again."""
    for line in machine.troubles(seen.launcher_events):
        st.caption(f":material/warning: {line}.")


def why_no_gpu(events: Sequence[Event]) -> str:
    """The sampler's own words, if it left any."""
    reasons = [event.data.get("reason") for event in events if event.kind == "nvml_unavailable"]
    return str(next((reason for reason in reasons if reason), "none were recorded"))
