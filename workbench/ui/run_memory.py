"""What a rank of a run has to hold by formula, beside what it was measured to hold."""

from __future__ import annotations

from typing import Any

import streamlit as st

from engine.config.errors import InputError
from engine.config.run_config import parse
from engine.footprint.footprint import Footprint, largest
from engine.validation import rules
from workbench import words
from workbench.ui.shared import table


def draw(found: dict[str, Any]) -> None:
    """Nothing for a configuration that could not run."""
    row = _largest(found["config"])
    if row is None:
        return
    with st.container(border=True, key="run-memory-parts"):
        st.markdown("**What a rank must hold**")
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
        st.caption(_beside(row, found))


def _largest(tree: dict[str, Any] | None) -> Footprint | None:
    try:
        config = parse(tree or {})
        rules.check(config)
    except InputError:
        return None
    return largest(config)


def _parts(row: Footprint) -> dict[str, int]:
    return {
        "parameters": row.parameter_bytes,
        "gradients": row.gradient_bytes,
        "optimizer state": row.optimizer_bytes,
        "activations at the peak": row.activation_bytes,
        "buffers of communication": row.buffer_bytes,
        "together": row.total_bytes,
    }


def _beside(row: Footprint, found: dict[str, Any]) -> str:
    """Which rank it is, and what was measured."""
    stages = ", ".join(map(str, row.stages))
    flying = "1 micro-batch" if row.in_flight == 1 else f"{row.in_flight:,g} micro-batches"
    where = f"Rank {row.rank:,} (stage {stages}), which holds most, with {flying} in flight."
    moved = (
        f" Offloading keeps {words.gib(row.host_bytes)} more in the host's memory." if row.host_bytes else ""
    )
    peak = found["peak_memory_bytes"]
    if peak is None:
        return where + moved
    return (
        f"{where}{moved} Measured at the peak of the largest rank: **{words.gib(peak)}**. On a CPU that is the whole "
        "process, with Python, torch and what kernels need for themselves; on a GPU what tensors take."
    )
