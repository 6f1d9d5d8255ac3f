"""Every collective of a run's steps: seconds, bytes and bandwidth."""

from __future__ import annotations

from typing import Any

import streamlit as st

from profilers.analysis.communication import message_seconds_reason
from workbench.figures import base, steps
from workbench.pages.widgets.plotly_chart import chart
from workbench.pages.widgets.shared import scaled, table
from workbench.records.live_snapshot import Snapshot
from workbench.text import words

_Number = st.column_config.NumberColumn


def draw(seen: Snapshot, found: dict[str, Any]) -> None:
    rows = found["communication"] or seen.communication
    if not rows:
        st.caption("No collective was recorded: with one rank there is nothing to send.")
        return
    if found["outer"]:
        st.caption(f"Outer loop: {words.outer(found['outer'])}.")
    drawn = steps.collective_series(rows)
    chart(base.collectives(drawn, seen.id), "run-collectives", "Collectives per step and rank")
    _table(rows)
    _collective_notes(found, [row["operation"] for row in rows])


def _collective_notes(found: dict[str, Any], operations: list[str]) -> None:
    if found["communication"]:
        keys = ("wire_bytes_per_step", "wire_bytes_measured", "wire_bytes_reason")
        st.caption(f":material/cable: On the wire: {words.wire(*(found.get(key) for key in keys))}.")
    if found.get("peak_bandwidth_reason"):
        st.caption(f":material/info: Percent of the measured peak: {found['peak_bandwidth_reason']}.")
    reason = message_seconds_reason(operations)
    if reason:
        st.caption(f":material/info: Time of {reason}.")


def _table(rows: list[dict[str, Any]]) -> None:
    columns = {
        "operation": [row["operation"] for row in rows],
        "axis": [row["axis"] for row in rows],
        "calls per step": [row["calls"] for row in rows],
        "MB per step": [row["bytes"] / 1e6 for row in rows],
        "wire MB": [scaled(row.get("wire_bytes"), 1e-6) for row in rows],
        "ms per step": [_milliseconds(row["seconds"]) for row in rows],
        "exposed ms": [_milliseconds(row["exposed_seconds"]) for row in rows],
        "bus bandwidth, GB/s": [scaled(row["bus_bandwidth"], 1e-9) for row in rows],
        "% of measured peak": [scaled(row.get("peak_fraction"), 1e2) for row in rows],
        "expected ms": [_milliseconds(row.get("expected_seconds")) for row in rows],
    }
    table(columns, "run-collective-table", _formats())


def _formats() -> dict[str, Any]:
    return {
        "calls per step": _Number(format="%,.1f"),
        "MB per step": _Number(format="%,.2f"),
        "wire MB": _Number(
            format="%,.2f", help="What the backend's algorithm sends for it, by formula, without headers."
        ),
        "ms per step": _Number(format="%,.2f"),
        "exposed ms": _Number(format="%,.2f"),
        "bus bandwidth, GB/s": _Number(format="%,.3f"),
        "% of measured peak": _Number(
            format="%,.1f", help="Of the best bus bandwidth that `workbench calibrate` measured here."
        ),
        "expected ms": _Number(
            format="%,.2f", help="As many calls of the mean size, by the calibration's fit."
        ),
    }


def _milliseconds(value: float | None) -> float | None:
    return scaled(value, 1e3)
