"""The host's processors, network and disk, the ranks' shares of them, and the memory of each rank over time.

What a rank of a run has to hold by formula, beside what it was measured to hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from engine.config.errors import InputError
from engine.config.run_config import parse
from engine.config.validation import rules
from engine.footprint.footprint import Footprint, largest
from profilers.model.rows import MemoryPlanRow
from profilers.model.run_summary import RunSummary
from workbench.figures import host
from workbench.pages.widgets.common import icon_note, number_table, table
from workbench.pages.widgets.plotly_chart import shared_chart
from workbench.records.live_snapshot import Snapshot
from workbench.text import quantities, step, words


def draw_host(snapshot: Snapshot, summary: RunSummary) -> None:
    """What each host amounted to; of one its cores and the ranks' shares of them, other readings, network and disk;
    what the sampler could not read, and what it cost.
    """
    if summary.hosts:
        number_table(quantities.host_columns(summary.hosts), "run-host-table")
    snapshot = choose_host(snapshot, "run-host")
    start = snapshot.status.began_unix
    processors(snapshot, "run")
    readings(snapshot, "run-host-readings")
    shared_chart(
        lambda: host.traffic(
            host.network_series(snapshot.network, snapshot.host, start),
            host.disk_series(snapshot.host, start),
            snapshot.id,
        ),
        "run-traffic",
        "Network by interface, and disk",
        snapshot.version,
    )
    if snapshot.interfaces:
        ranks = snapshot.status.world_size or 0
        shared_chart(
            lambda: host.interfaces(host.interface_series(snapshot.interfaces, start, ranks), snapshot.id),
            "run-interfaces",
            "Network of the ranks' own interfaces",
            snapshot.version,
        )
        links(snapshot)
    if summary.networks:
        networks_text = words.escape(step.networks(summary.networks))
        st.caption(
            f":material/lan: {words.escape(f'What groups send over, by where their members are: {networks_text}.')}"
        )
    for event in snapshot.launcher_events:
        if event.kind == "readings_missing":
            functions = "; ".join(event.data.get("functions") or [])
            icon_note("warning", f"Not available: {functions}.")
        if event.kind == "sampler":
            icon_note("info", _cost(event.data, snapshot))


def links(snapshot: Snapshot) -> None:
    """How much of each link's rate the ranks use."""
    uses = host.link_uses(snapshot)
    if not uses:
        return
    number = st.column_config.NumberColumn(format="%,.2f")
    columns = {name: [getattr(row, field) for row in uses] for name, field in host.TITLES.items()}
    formats = {name: number for name in columns if "/s" in name or "%" in name}
    table(columns, "run-links", formats)


def choose_host(snapshot: Snapshot, key: str) -> Snapshot:
    """The readings of one of several hosts; nothing is asked where there is one."""
    if len(snapshot.hosts) < 2:
        return snapshot
    return snapshot.select_host(st.selectbox("Host", list(snapshot.hosts), key=key))


def processors(snapshot: Snapshot, page: str) -> None:
    """Cores, and the ranks' shares of them, side by side."""
    start = snapshot.status.began_unix
    left, right = st.columns(2)
    with left:
        shared_chart(
            lambda: host.cores(host.core_series(snapshot.cores, start), snapshot.id),
            f"{page}-cores",
            "How busy each core was over time",
            snapshot.version,
        )
    with right:
        shared_chart(
            lambda: _shares(snapshot), f"{page}-shares", "Share of the processors by rank", snapshot.version
        )


def readings(snapshot: Snapshot, key: str) -> None:
    """What has a panel of the host's readings, and of its ranks' processes."""
    start = snapshot.status.began_unix
    shared_chart(
        lambda: host.readings(snapshot.host, snapshot.processes, start, snapshot.id),
        key,
        host.readings_label(),
        snapshot.version,
    )


def _shares(snapshot: Snapshot) -> go.Figure:
    start = snapshot.status.began_unix
    return host.shares(
        host.share_series(snapshot.processes, snapshot.host, snapshot.cores, start), snapshot.id
    )


def _cost(cost: dict[str, Any], snapshot: Snapshot) -> str:
    times = snapshot.host.get("time_unix", np.empty(0))
    seconds = float(times[-1] - times[0]) if len(times) > 1 else 0.0
    share = f", {words.percent(cost['cpu_seconds'] / seconds, 2)} of one core" if seconds else ""
    return f"These readings took {words.seconds(cost['cpu_seconds'])} of processor time{share}."


def memory(snapshot: Snapshot, key: str) -> None:
    """The memory timeline."""
    shared_chart(
        lambda: host.memory(host.memory_series(snapshot.memory, snapshot.status.began_unix), snapshot.id),
        key,
        "Memory by rank over time, with the peak",
        snapshot.version,
    )


def draw_memory(config: Mapping[str, Any], peak_bytes: int | None) -> None:
    """Nothing for a configuration that could not run."""
    row = _largest(config)
    if row is None:
        return
    with st.container(border=True, key="run-memory-parts"):
        st.markdown("**Memory that a rank needs**")
        parts = _parts(row)
        table(
            {
                "by formula": list(parts),
                "MiB": [size / 2**20 for size in parts.values()],
                "share": [size / row.total_bytes * 100 for size in parts.values()],
            },
            "run-memory-table",
            {
                "MiB": st.column_config.NumberColumn(format="%,.1f"),
                "share": st.column_config.ProgressColumn(format="%.1f %%", min_value=0, max_value=100),
            },
        )
        st.caption(words.escape(_peak_comparison(row, peak_bytes)))


def draw_memory_plans(plans: Sequence[MemoryPlanRow]) -> None:
    """What each stage does with its blocks' activations; nothing without a budget for them."""
    if not plans:
        return
    with st.container(border=True, key="run-memory-plan"):
        st.markdown("**Plan of activations**")
        for row in plans:
            plan_text = step.memory_plan(row)
            icon_note("stacks", f"{plan_text[:1].upper()}{plan_text[1:]}.")
            number_table(step.memory_plan_columns(row), f"run-memory-plan-{row.stage}")


def _largest(tree: Mapping[str, Any]) -> Footprint | None:
    try:
        config = parse(dict(tree))
        rules.check(config)
        return largest(config)
    except InputError:  # or formulas do not know the model
        return None


def _parts(row: Footprint) -> dict[str, int]:
    return {
        "parameters": row.parameter_bytes,
        "gradients": row.gradient_bytes,
        "optimizer state": row.optimizer_bytes,
        "activations at the peak": row.activation_bytes,
        "buffers of communication": row.buffer_bytes,
        "together": row.total_bytes,
    }


def _peak_comparison(row: Footprint, peak_bytes: int | None) -> str:
    """Which rank it is, and what was measured."""
    stages = ", ".join(map(str, row.stages))
    flying = "1 micro-batch" if row.in_flight == 1 else f"{row.in_flight:,g} micro-batches"
    rank_text = f"Rank {row.rank:,} (stage {stages}), which holds most, with {flying} in flight."
    offload_text = (
        f" Offloading keeps another {words.gib(row.host_bytes)} in the host's memory."
        if row.host_bytes
        else ""
    )
    if peak_bytes is None:
        return rank_text + offload_text
    return (
        f"{rank_text}{offload_text} Measured at the peak of the largest rank: {words.gib(peak_bytes)}. On a CPU that "
        "is the whole process, with Python, torch and what kernels need for themselves; on a GPU what "
        "tensors take."
    )
