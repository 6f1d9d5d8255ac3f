"""The charts of the Live page. Their keys never change, so that a browser redraws them in place."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import streamlit as st

from profilers.analysis import machine
from profilers.analysis.rounds import recent_steps
from profilers.records.schema import Event
from workbench.figures import base, gpu, steps
from workbench.pages.run import host
from workbench.pages.run.live.header import ranks_table
from workbench.pages.widgets.common import icon_note
from workbench.pages.widgets.plotly_chart import shared_chart
from workbench.records.columns import slowest_rank
from workbench.records.live_snapshot import Snapshot
from workbench.text import words

SLOWEST = "slowest"


def charts(snapshot: Snapshot, linked: int | None = None) -> None:
    """Steps and ranks, collectives, loss, then host and GPUs; a ``linked`` step is marked."""
    left, right = st.columns([2.1, 1])
    with left:
        _phases(snapshot, linked)
        shared_chart(
            lambda: base.collectives(steps.collective_series(snapshot.communication), snapshot.id),
            "live-collectives",
            "Collectives per step and rank",
            snapshot.version,
        )
        window = recent_steps(snapshot.config.get("outer"))
        st.caption(f"Collectives are means over ranks and the last {window} steps in detail.")
    with right:
        ranks_table(snapshot)
        shared_chart(lambda: _loss(snapshot), "live-loss", "Training loss per step", snapshot.version)
    left, right = st.columns(2)
    with left:
        shared_chart(
            lambda: base.add_marks(
                base.ranks(steps.rank_series(snapshot.steps), snapshot.id), _marks(snapshot, linked)
            ),
            "live-rank-steps",
            "Step time by rank",
            snapshot.version,
            linked,
        )
    with right:
        host.memory(snapshot, "live-memory")
    _machine(snapshot)


def _marks(snapshot: Snapshot, linked: int | None) -> list[steps.Mark]:
    return [*steps.change_marks(snapshot.changes), *steps.linked_mark(linked, snapshot.steps)]


def _loss(snapshot: Snapshot) -> go.Figure:
    validation = snapshot.summary.validation_loss if snapshot.summary else None
    losses = steps.loss_series(snapshot.steps, validation)
    return base.loss(losses, snapshot.id)


def _phases(snapshot: Snapshot, linked: int | None) -> None:
    choice = _choose_rank(sorted(snapshot.steps))
    shared_chart(
        lambda: base.add_marks(_phases_of(snapshot, choice), _marks(snapshot, linked)),
        "live-phases",
        "Step time by phase, stacked bars per step",
        snapshot.version,
        choice,
        linked,
    )


def _choose_rank(ranks: list[int]) -> str:
    """Any of them: as buttons while these are few, else as a list that is searched by typing."""
    options = [SLOWEST, *map(str, ranks)]
    if len(ranks) > steps.RANKS:
        return str(
            st.selectbox(
                "Rank", options, key="live-rank-of-many", format_func=_rank_name, label_visibility="collapsed",
                width=220, bind="query-params",
            )
        )  # fmt: skip
    selected = st.segmented_control(
        "Rank",
        options,
        default=SLOWEST,
        required=True,
        key="live-rank",
        format_func=_rank_name,
        label_visibility="collapsed",
        bind="query-params",
    )
    return selected or SLOWEST


def _rank_name(name: str) -> str:
    return "slowest rank" if name == SLOWEST else f"rank {name}"


def _phases_of(snapshot: Snapshot, choice: str) -> go.Figure:
    rank = None if choice == SLOWEST or int(choice) not in snapshot.phases else int(choice)
    columns = slowest_rank(snapshot.steps) if rank is None else snapshot.steps[rank]
    name = "the slowest rank of each step" if rank is None else f"rank {rank}"
    series = steps.bars_of(snapshot.phases[rank], name, columns)
    return base.phases(series, snapshot.id)


def _machine(snapshot: Snapshot) -> None:
    snapshot = host.choose_host(snapshot, "live-host-choice")
    start = snapshot.status.began_unix
    host.processors(snapshot, "live")
    host.readings(snapshot, "live-host")
    if len(snapshot.gpu.get("time_unix", ())):
        shared_chart(
            lambda: gpu.live(snapshot.gpu, start, snapshot.id),
            "live-gpu",
            gpu.live_label(),
            snapshot.version,
        )
        gpu_troubles(snapshot)
    else:
        icon_note("memory", f"No GPU readings: {why_no_gpu(snapshot.launcher_events)}")
    for problem in snapshot.problems:
        icon_note("warning", problem)


def gpu_troubles(snapshot: Snapshot) -> None:
    """When the driver did not answer for a GPU, and whether it did again."""
    for line in machine.driver_failures(snapshot.launcher_events):
        st.caption(f":material/warning: {words.escape(line)}.")


def why_no_gpu(events: Sequence[Event]) -> str:
    """The sampler's own words, if it left any."""
    reasons = [event.data.get("reason") for event in events if event.kind == "nvml_unavailable"]
    return str(next((reason for reason in reasons if reason), "none were recorded"))
