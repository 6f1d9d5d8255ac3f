"""Which knobs a new study turns, and between which values."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import streamlit as st

from workbench import words
from workbench.ui.shared import grid

COLUMNS = 3
TITLES = {
    "parallel.tp": "Tensor parallel (tp)",
    "parallel.pp": "Pipeline parallel (pp)",
    "parallel.cp": "Context parallel (cp)",
    "parallel.cp_method": "Context parallel by",
    "parallel.ep": "Expert parallel (ep)",
    "parallel.zero_stage": "ZeRO stage",
    "parallel.shard_ranks": "Ranks per sharded copy",
    "batch.micro_batch": "Micro-batch",
    "memory.recompute": "Recompute",
    "memory.recompute_layers": "Recomputed layers",
    "memory.offload": "Offload to host",
    "memory.parameters": "Parameters in",
    "schedule.kind": "Pipeline schedule",
    "schedule.chunks": "Stages per rank",
    "compression.method": "Gradient compression",
    "compression.ratio": "Compression ratio",
    "compression.rank": "PowerSGD rank",
    "outer.method": "Outer loop",
    "outer.period": "Steps a round",
    "overlap.bucket_mb": "Bucket size, MB",
    "overlap.prefetch": "Layers gathered ahead",
    "overlap.gather_with_optimizer": "Gather beside the update",
    "overlap.tp_chunks": "Tensor parallel in chunks",
    "overlap.delay": "Steps gradients come late",
    "compression.weights": "Weights sent in",
    "compression.experts": "Expert tokens sent in",
    "compile": "torch.compile",
}


def knobs(offered: dict[str, Any], usual: Collection[str]) -> dict[str, Any]:
    """The ``space`` of a study file: the chosen knobs with their chosen values; ``usual`` ones are chosen at first."""
    with st.container(border=True, key="new-space"):
        st.markdown("**What is searched**")
        st.caption("Taken out, a knob stays at its default. dp follows from ranks / (tp x pp x cp).")
        chosen = st.pills(
            "Knobs",
            list(offered),
            selection_mode="multi",
            default=[key for key in offered if key in usual],
            key=f"new-knobs-{len(offered)}-{len(usual)}",
            format_func=title,
            label_visibility="collapsed",
        )
        turned = [key for key in offered if key in chosen]
        places = grid(len(turned), COLUMNS)
        return {key: _values(place, key, offered[key]) for place, key in zip(places, turned, strict=False)}


def title(key: str) -> str:
    """A knob's name."""
    return TITLES.get(key, key)


def _values(place: Any, key: str, offered: Any) -> Any:
    if isinstance(offered, dict):
        return _range(place, key, offered)
    chosen = place.multiselect(
        title(key),
        offered,
        default=offered,
        key=f"new-space-{words.identifier(key)}",
        format_func=partial(words.choice, key),
        accept_new_options=_takes_more(key),
        help=f"`{key}`",
        wrap=True,
    )
    return [number(item) for item in chosen]


def _takes_more(key: str) -> bool:
    return key in ("batch.micro_batch", "overlap.bucket_mb")


def number(item: Any) -> Any:
    """A value that was typed in is a text; the study file says what is wrong with one that is no number."""
    if not isinstance(item, str):
        return item
    try:
        return int(item) if item.lstrip("-").isdigit() else float(item)
    except ValueError:
        return item


def _range(place: Any, key: str, offered: dict[str, Any]) -> dict[str, Any]:
    with place:
        low, high = st.columns(2)
        name = words.identifier(key)
        ends = {
            "low": low.number_input(
                f"{title(key)}, from", value=offered["low"], format="%g", key=f"new-low-{name}"
            ),
            "high": high.number_input("to", value=offered["high"], format="%g", key=f"new-high-{name}"),
        }
    return offered | ends
