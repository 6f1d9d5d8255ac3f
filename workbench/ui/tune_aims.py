"""What a new study aims at: its objectives, the price of a rank, what the winner must keep, and what may be used."""

from __future__ import annotations

from typing import Any

import streamlit as st

from tuning.spec.objectives import KNOWN
from tuning.spec.terms import Budget, Constraints
from workbench.ui import forms

LOSS = "time_to_loss"
KEPT = {
    "memory_headroom": None,
    "max_step_seconds": None,
    "joules_per_token": None,
    "money_per_billion_tokens": None,
}
USED = {"wall_seconds": None, "gpu_hours": None, "money": None}


def aims(base: dict[str, Any]) -> dict[str, Any]:
    """Those parts of a study file, where they are not the defaults; what a loss to reach needs goes into ``base``."""
    with st.container(border=True, key="new-aims"):
        st.markdown("**What is wanted**")
        found = _objective(base)
        with st.expander("Price, constraints and budgets", icon=":material/payments:", key="new-terms"):
            found |= _sections()
    return found


def _objective(base: dict[str, Any]) -> dict[str, Any]:
    wide, narrow = st.columns([3, 1])
    chosen = wide.multiselect(
        "Objectives",
        list(KNOWN),
        ["tokens_per_second"],
        key="new-objectives",
        format_func=lambda name: KNOWN[name].title,
        help="With several, the result is their front: configurations that no other one beats in all of them.",
    )
    asked: list[Any] = [{LOSS: _loss(base)} if name == LOSS else name for name in chosen]
    if len(chosen) < 2:
        return {"objective": asked[0]} if asked and asked != ["tokens_per_second"] else {}
    best = narrow.selectbox(
        "The best is decided by", chosen, key="new-prefer", format_func=lambda name: KNOWN[name].title
    )
    return {"objective": asked} | ({"prefer": best} if best != chosen[0] else {})


def _loss(base: dict[str, Any]) -> float:
    """The loss to reach; how often it is looked at belongs to every run."""
    left, right = st.columns(2)
    target = left.number_input(
        "Loss to reach, on held-out text", 0.01, value=3.0, key="new-target-loss", format="%g"
    )
    every = right.number_input("Looked at after every so many steps", 1, value=4, key="new-validate-every")
    base.setdefault("train", {})["validate_every"] = every
    return float(target)


def _sections() -> dict[str, Any]:
    price = _price()
    used = forms.section(Budget, USED, "new-budget", 3)
    kept = forms.section(Constraints, KEPT, "new-constraints", 4)
    found = {"price": price, "constraints": kept, "budget": used}
    given = {
        name: {key: value for key, value in section.items() if value is not None}
        for name, section in found.items()
    }
    return {name: section for name, section in given.items() if section}


def _price() -> dict[str, Any]:
    left, right = st.columns(2)
    hourly = left.number_input(
        "Price of a rank's hour",
        0.0,
        value=None,
        key="new-price-per-gpu-hour",
        format="%g",
        placeholder=forms.UNSET,
        help="Of its GPU, or of its share of a machine where ranks run on CPUs. Money is not counted without it.",
    )
    currency = right.text_input("Currency", "USD", key="new-price-currency").strip()
    return {"per_gpu_hour": hourly, "currency": currency} if hourly else {}
