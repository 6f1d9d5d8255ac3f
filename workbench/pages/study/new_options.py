"""What few studies change: how trials race and are measured again, what proposes, and which studies came before.

What a new study aims at: its objectives, the price of a rank, what the winner must keep, and what may be used.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from tuning.execution import device_slices
from tuning.spec.objectives import KNOWN
from tuning.spec.study_file import StudyFile
from tuning.spec.terms import Budget, Constraints, Live, Racing
from workbench.pages.study import new_knobs
from workbench.pages.widgets import forms
from workbench.pages.widgets.common import study_rows, wrong_value
from workbench.text import words

#: As the study file has them; None: its own default.
FIELDS = {
    "sampler": None,
    "prior": None,
    "phases": None,
    "seed": None,
    "confirm_repeats": None,
    "confirm_runners_up": None,
    "equal_within": None,
    "loss_guard.threshold": None,
}
LIVE = {"steps": None, "checkpoint_every": None, "max_slowdown": None, "over_steps": None}
RACING = {"settle": None, "least_steps": None, "spread": None}
COLUMNS = 3


def advanced_options(config: RunConfig, ranks: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of a study file, by dotted names, where they are not the defaults; and what its space has beside."""
    with st.expander("Advanced", icon=":material/tune:", key="new-advanced"):
        options = forms.changed_values(StudyFile, forms.section(StudyFile, FIELDS, "new-study", COLUMNS))
        options |= racing() | _side_by_side(config, ranks) | inherit()
        return options, new_knobs.environment_knobs(config, ranks)


def live() -> dict[str, Any]:
    """The terms of a study that tunes one run while it goes; nothing of one whose trials are runs."""
    is_live = st.toggle(
        "Tune one run while it goes",
        False,
        key="new-live",
        help="Each trial is a window of its steps; afterwards the run trains on with what was found. (`live`)",
    )
    return {"live": forms.section(Live, LIVE, "new-live", 4)} if is_live else {}


def racing() -> dict[str, Any]:
    st.markdown("**Racing**")
    races = st.toggle(
        "End trials early that can no longer win, or whose step times have settled",
        True,
        key="new-study-racing",
        help="When off, every trial runs all its steps. (`racing`)",
    )
    if not races:
        return {"racing": False}
    options = forms.changed_values(Racing, forms.section(Racing, RACING, "new-racing", COLUMNS))
    return {"racing": options} if options else {}


def _side_by_side(config: RunConfig, ranks: int) -> dict[str, Any]:
    st.markdown("**Trials at once**")
    place, note_column = st.columns([1, 2], vertical_alignment="bottom")
    count = place.number_input(
        "Trials side by side",
        1,
        value=None,
        key="new-study-side-by-side",
        placeholder=forms.UNSET,
        help="Number of trials at once, each on its own part of this host's devices. The baseline and the "
        "confirmation run alone. (`side_by_side`)",
    )
    with note_column:
        _room(count or 1, config, ranks)
    return {"side_by_side": count} if count and count > 1 else {}


def _room(count: int, config: RunConfig, ranks: int) -> None:
    """What is wrong with so many at once on this host, or how many there can be."""
    try:
        if count > 1:
            device_slices.slices(count, ranks, config)
        devices = device_slices.host_devices(ranks, config)
    except InputError as error:
        if count > 1:
            wrong_value(str(error))
        return
    host_text = f"this host has {words.several(len(devices.devices), devices.noun)}"
    st.caption(
        f"At most {devices.most(ranks)} here: {host_text}, and a trial has {words.several(ranks, 'ranks')}."
    )


def inherit() -> dict[str, Any]:
    names = [row.name for row in study_rows()]
    if not names:
        return {}
    studies = st.multiselect(
        "Earlier studies to learn from",
        names,
        key="new-study-inherit",
        placeholder=forms.UNSET,
        help="If they asked the same question on the same machine, the sampler uses their trials. Otherwise their "
        "best points are measured first. (`inherit`)",
    )
    return {"inherit": studies} if studies else {}


LOSS, TIME = "time_to_loss", "loss_at_seconds"
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
        st.markdown("**What it aims at**")
        tree = _objective(base)
        with st.expander("Price, constraints and budgets", icon=":material/payments:", key="new-terms"):
            tree |= _sections()
    return tree


def _objective(base: dict[str, Any]) -> dict[str, Any]:
    wide, narrow = st.columns([3, 1])
    names = wide.multiselect(
        "Objectives",
        list(KNOWN),
        ["tokens_per_second"],
        key="new-objectives",
        format_func=lambda name: KNOWN[name].title,
        help="With several, the result is their Pareto front: configurations that no other one beats in all of them.",
    )
    forms_of_objectives = {
        LOSS: lambda: _loss(base),
        TIME: lambda: _time(narrow if len(names) < 2 else st.container()),
    }
    objectives: list[Any] = [
        {name: forms_of_objectives[name]()} if name in forms_of_objectives else name for name in names
    ]
    if len(names) < 2:
        return {"objective": objectives[0]} if objectives and objectives != ["tokens_per_second"] else {}
    best = narrow.selectbox(
        "Objective that decides the best",
        names,
        key="new-prefer",
        format_func=lambda name: KNOWN[name].title,
    )
    return {"objective": objectives} | ({"prefer": best} if best != names[0] else {})


def learns(objective: Any) -> bool:
    """Whether an objective, or one of several, asks for what was learned."""
    names = objective if isinstance(objective, list) else [objective]
    return any(KNOWN[key].learns for one in names if isinstance(one, dict) for key in one)


def _time(place: Any) -> float:
    """The time of each trial."""
    return float(
        place.number_input(
            "Seconds of each trial",
            1.0,
            value=60.0,
            key="new-trial-seconds",
            format="%g",
            help="Each trial trains for so long, however many steps fit; *Steps per trial* does not count then. "
            "(`objective.loss_at_seconds`)",
        )
    )


def _loss(base: dict[str, Any]) -> float:
    """The loss to reach; how often it is looked at belongs to every run."""
    target_column, interval_column = st.columns(2)
    target = target_column.number_input(
        "Held-out loss to reach", 0.01, value=3.0, key="new-target-loss", format="%g"
    )
    interval = interval_column.number_input(
        "Steps between checks of the held-out loss", 1, value=4, key="new-validate-every"
    )
    base.setdefault("train", {})["validate_every"] = interval
    return float(target)


def _sections() -> dict[str, Any]:
    price = _price()
    budget = forms.section(Budget, USED, "new-budget", 3)
    constraints = forms.section(Constraints, KEPT, "new-constraints", 4)
    sections = {"price": price, "constraints": constraints, "budget": budget}
    filled = {
        name: {key: value for key, value in section.items() if value is not None}
        for name, section in sections.items()
    }
    return {name: section for name, section in filled.items() if section}


def _price() -> dict[str, Any]:
    rate_column, currency_column = st.columns(2)
    hourly = rate_column.number_input(
        "Price of one rank-hour",
        0.0,
        value=None,
        key="new-price-per-gpu-hour",
        format="%g",
        placeholder=forms.UNSET,
        help="The price of its GPU, or of its share of the machine for ranks on CPUs. Without it no money is counted.",
    )
    currency = currency_column.text_input("Currency", "USD", key="new-price-currency").strip()
    return {"per_gpu_hour": hourly, "currency": currency} if hourly else {}
