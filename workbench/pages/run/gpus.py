"""The GPUs of a run: what each amounted to, and one of them over time."""

from __future__ import annotations

from typing import Any

import streamlit as st

from workbench.figures import gpu as gpu_figures
from workbench.figures import gpu as gpu_series
from workbench.pages.run import host
from workbench.pages.run.live_charts import gpu_troubles, why_no_gpu
from workbench.pages.widgets.plotly_chart import chart
from workbench.pages.widgets.shared import scaled, table
from workbench.records.live_snapshot import Snapshot
from workbench.text import words

#: Function of gpu_figures -> what it shows, in the order of the page.
CHARTS = {
    gpu_figures.activity: "How busy the GPU and its parts were",
    gpu_figures.clocks: "Clocks and what held them down",
    gpu_figures.power: "Power and its limit",
    gpu_figures.temperature: "Temperature and where the GPU slows down",
    gpu_figures.traffic: "Traffic over PCIe and the links between GPUs",
    gpu_figures.memory: "Memory in use",
}


def draw(seen: Snapshot, found: dict[str, Any]) -> None:
    """A table of all GPUs and the charts of one; or the reason why there are none."""
    seen = host.of_chosen_host(seen, "run-gpu-host")
    numbers = gpu_series.gpus(seen.gpu)
    if not numbers:
        reason = found.get("gpus_reason") or f"no GPU: {why_no_gpu(seen.launcher_events)}"
        st.caption(f":material/memory: {reason}")
        return
    read_by = gpu_series.source(seen.launcher_events)
    if read_by.names:
        st.caption(f":material/memory: {read_by.names} ({read_by.vendor}), read by {read_by.library}")
    _table(found.get("gpus") or [], len(seen.hosts) > 1)
    gpu_troubles(seen)
    chosen = st.segmented_control(
        "GPU", numbers, default=numbers[0], required=True, key="run-gpu", format_func=lambda gpu: f"GPU {gpu}"
    )
    start = float(seen.status.get("started_unix") or seen.status.get("created_unix") or 0.0)
    drawn = gpu_series.detail(seen.gpu, chosen if chosen is not None else numbers[0], start, read_by)
    columns = st.columns(2)
    for place, (make, alt) in enumerate(CHARTS.items()):
        with columns[place % 2]:
            chart(make(drawn, f"{seen.id}-{chosen}"), f"run-gpu-{make.__name__}", alt)


def _table(rows: list[dict[str, Any]], several_hosts: bool) -> None:
    if not rows:
        return
    number = st.column_config.NumberColumn
    table(
        ({"host": [row.get("host") for row in rows]} if several_hosts else {})
        | {
            "GPU": [row["gpu"] for row in rows],
            "ranks": [_ranks(row.get("ranks")) for row in rows],
            "busy, %": [scaled(row["utilization"], 100) for row in rows],
            "tensor cores, %": [scaled(row["tensor_active"], 100) for row in rows],
            "mean W": [row["power_watts"] for row in rows],
            "most W": [row["max_power_watts"] for row in rows],
            "kJ": [scaled(row["energy_joules"], 1e-3) for row in rows],
            "most °C": [row["max_temperature_celsius"] for row in rows],
            "clocks held down by": [throttled(row["throttled"]) for row in rows],
            "ECC, not corrected": [row["ecc_uncorrected"] for row in rows],
        },
        "run-gpu-table",
        {
            "busy, %": number(format="%.0f"),
            "tensor cores, %": number(format="%.0f"),
            "mean W": number(format="%,.0f"),
            "most W": number(format="%,.0f"),
            "kJ": number(format="%,.1f"),
            "most °C": number(format="%.0f"),
        },
    )


def _ranks(ranks: list[int] | None) -> str:
    """Those that computed on the GPU."""
    if ranks is None:
        return "not known"
    return ", ".join(f"{rank:,}" for rank in ranks) or words.NOTHING


def throttled(shares: dict[str, float]) -> str:
    """ "power cap 75 %, idle 3 %"; a dash if the clocks were free."""
    return ", ".join(f"{reason} {words.percent(share)}" for reason, share in shares.items()) or words.NOTHING
