"""The host's processors, network and disk, the ranks' shares of them, and the memory of each rank over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st

from workbench import host_figures, host_series, link_use, memory_series, words
from workbench.live import Snapshot
from workbench.ui.chart import chart
from workbench.ui.shared import table


def start_of(seen: Snapshot) -> float:
    """When the run began, in unix seconds: the origin of every time axis."""
    return float(seen.status.get("started_unix") or seen.status.get("created_unix") or 0.0)


def draw(seen: Snapshot) -> None:
    """Cores and the ranks' shares of them, network and disk; what the sampler could not read, and what it cost."""
    seen = of_chosen_host(seen, "run-host")
    start = start_of(seen)
    processors(seen, "run")
    network = host_series.network_series(seen.network, seen.host, start)
    disk = host_series.disk_series(seen.host, start)
    chart(host_figures.traffic(network, disk, seen.id), "run-traffic", "Network by interface, and disk")
    if seen.interfaces:
        ranks = int(seen.status.get("world_size") or 0)
        lines = host_series.interface_series(seen.interfaces, start, ranks)
        chart(
            host_figures.interfaces(lines, seen.id), "run-interfaces", "Network of the ranks' own interfaces"
        )
        links(seen)
    for event in seen.launcher_events:
        if event.kind == "readings_missing":
            st.caption(f":material/warning: Not available: {'; '.join(event.data.get('functions') or [])}.")
        if event.kind == "sampler":
            st.caption(f":material/info: {_cost(event.data, seen)}")


def links(seen: Snapshot) -> None:
    """How much of each link's rate the ranks use."""
    used = link_use.link_uses(seen)
    if not used:
        return
    number = st.column_config.NumberColumn(format="%,.2f")
    columns = {name: [getattr(row, field) for row in used] for name, field in link_use.TITLES.items()}
    formats = {name: number for name in columns if "/s" in name or "%" in name}
    table(columns, "run-links", formats)


def of_chosen_host(seen: Snapshot, key: str) -> Snapshot:
    """The readings of one of several hosts; nothing is asked where there is one."""
    if len(seen.hosts) < 2:
        return seen
    return seen.of_host(st.selectbox("Host", list(seen.hosts), key=key))


def processors(seen: Snapshot, page: str) -> None:
    """Cores, and the ranks' shares of them, side by side."""
    start = start_of(seen)
    left, right = st.columns(2)
    with left:
        cores = host_series.core_series(seen.cores, start)
        chart(host_figures.cores(cores, seen.id), f"{page}-cores", "How busy each core was over time")
    with right:
        shares = host_series.share_series(seen.processes, seen.host, seen.cores, start)
        chart(host_figures.shares(shares, seen.id), f"{page}-shares", "Share of the processors by rank")


def _cost(told: dict[str, Any], seen: Snapshot) -> str:
    times = seen.host.get("time_unix", np.empty(0))
    seconds = float(times[-1] - times[0]) if len(times) > 1 else 0.0
    share = f", {words.percent(told['cpu_seconds'] / seconds, 2)} of one core" if seconds else ""
    return f"These readings took {words.seconds(told['cpu_seconds'])} of processor time{share}."


def memory(seen: Snapshot, key: str) -> None:
    """The memory timeline."""
    drawn = memory_series.memory_series(seen.memory, start_of(seen))
    chart(host_figures.memory(drawn, seen.id), key, "Memory by rank over time, with the peak")


def where(found: dict[str, Any]) -> str:
    """Whose peak it was, and during what."""
    rank, phase = found.get("peak_memory_rank"), found.get("peak_memory_phase")
    if rank is None:
        return "of the largest rank"
    return f"rank {rank}, {words.spoken(phase)}" if phase else f"of rank {rank}"
