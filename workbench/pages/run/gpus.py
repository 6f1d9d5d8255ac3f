"""The GPUs of a run: what each amounted to, and one of them over time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import plotly.graph_objects as go
import streamlit as st

from profilers.model.run_summary import RunSummary
from workbench.figures import gpu
from workbench.pages.run import host
from workbench.pages.run.live.charts import gpu_troubles, why_no_gpu
from workbench.pages.widgets.common import icon_note, number_table
from workbench.pages.widgets.plotly_chart import shared_chart
from workbench.records.live_snapshot import Snapshot
from workbench.text import quantities, words

#: Function of workbench.figures.gpu -> what it shows, in the order of the page.
CHARTS = {
    gpu.activity: "How busy the GPU and its parts were",
    gpu.clocks: "Clocks, and what throttled them",
    gpu.power: "Power and its limit",
    gpu.temperature: "Temperature and where the GPU slows down",
    gpu.traffic: "Traffic over PCIe and the links between GPUs",
    gpu.memory: "Memory in use",
}


def draw(snapshot: Snapshot, summary: RunSummary) -> None:
    """A table of all GPUs and the charts of one; or the reason why there are none."""
    snapshot = host.choose_host(snapshot, "run-gpu-host")
    numbers = gpu.gpus(snapshot.gpu)
    if not numbers:
        reason = summary.gpus_reason or f"no GPU: {why_no_gpu(snapshot.launcher_events)}"
        icon_note("memory", reason)
        return
    read_by = gpu.source(snapshot.launcher_events)
    if read_by.names:
        st.caption(
            f":material/memory: {words.escape(f'{read_by.names} ({read_by.vendor}), read by {read_by.library}')}"
        )
    if summary.gpus:
        number_table(quantities.gpu_columns(summary.gpus, len(snapshot.hosts) > 1), "run-gpu-table")
    gpu_troubles(snapshot)
    selected = st.segmented_control(
        "GPU",
        numbers,
        default=numbers[0],
        required=True,
        key="run-gpu",
        format_func=lambda number: f"GPU {number}",
    )
    number = selected if selected is not None else numbers[0]
    columns = st.columns(2)
    for place, (make_figure, alt) in enumerate(CHARTS.items()):
        with columns[place % 2]:
            shared_chart(
                partial(_draw, make_figure, snapshot, number, read_by),
                f"run-gpu-{make_figure.__name__}",
                alt,
                snapshot.version,
                number,
            )


def _draw(
    make_figure: Callable[[gpu.GpuDetail, str], go.Figure],
    snapshot: Snapshot,
    number: int,
    read_by: gpu.Source,
) -> go.Figure:
    detail = gpu.detail(snapshot.gpu, number, snapshot.status.began_unix, read_by)
    return make_figure(detail, f"{snapshot.id}-{number}")
