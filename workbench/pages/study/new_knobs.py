"""Environment variables as knobs of a new study: those that can act here, what they do, and their values.

Which knobs a new study turns, and between which values.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import streamlit as st

from engine.config.environment import VARIABLES, ineffective_reason
from engine.config.errors import InputError
from engine.config.knobs.catalogue import UNSET, facts_of
from engine.config.run_config import RunConfig
from engine.run.devices import selection
from tuning.search.phases import SHARES, group_of
from tuning.space.knobs import offered_environment, parse_space
from workbench.pages.widgets import forms
from workbench.pages.widgets.common import grid, wrong_value
from workbench.text import words


def knobs(
    space: dict[str, Any], usual: Collection[str], other_values: Mapping[str, list[Any]]
) -> dict[str, Any]:
    """The ``space`` of a study file: the chosen knobs with their chosen values; ``usual`` ones are chosen at first,
    ``other_values`` are listed and not chosen.
    """
    with st.container(border=True, key="new-space"):
        st.markdown("**What is searched**")
        st.caption("A knob that is removed keeps its one value in all trials. dp is ranks / (tp x pp x cp).")
        key = f"new-knobs-{len(space)}-{len(usual)}"
        st.session_state.setdefault(key, [knob for knob in space if knob in usual])
        _presets(key, space, usual)
        picked = st.pills(
            "Knobs",
            list(space),
            selection_mode="multi",
            key=key,
            format_func=title,
            label_visibility="collapsed",
        )
        selected = [key for key in space if key in picked]
        places = grid(len(selected), COLUMNS)
        return {
            key: _values(place, key, space[key], other_values.get(key, []))
            for place, key in zip(places, selected, strict=False)
        }


def _presets(chooser: str, all_keys: Collection[str], usual: Collection[str]) -> None:
    """Buttons that choose many knobs at once: a study of two needs no nine clicks to drop the others."""
    groups = {"Usual": [key for key in all_keys if key in usual]}
    for name in SHARES:
        groups[name.capitalize()] = [key for key in groups["Usual"] if group_of(key) == name]
    groups |= {"All": list(all_keys), "None": []}
    with st.container(horizontal=True, gap="small", key="new-presets"):
        for name, keys in groups.items():
            if keys or name == "None":
                st.button(
                    name,
                    key=f"preset-{words.identifier(name.replace(' ', '-'))}",
                    type="tertiary",
                    help=_about_preset(name, len(keys)),
                    on_click=lambda keys=keys: st.session_state.update({chooser: keys}),
                )


def _about_preset(name: str, count: int) -> str:
    match name:
        case "None":
            return "Drops all knobs, to choose a few by hand."
        case "Usual":
            return "What a study turns by itself with these ranks and this model."
        case "All":
            return f"Everything that can be turned here, {words.several(count, 'knobs')}: a long study."
    return f"Only the usual knobs of this kind ({name.lower()})."


def title(key: str) -> str:
    """A knob's name."""
    return facts_of(key).title or key


def knob_help(key: str) -> str:
    """What a knob may change, what is gained and what it costs, and its key."""
    facts = facts_of(key)
    changes_text = f"May change {' and '.join(facts.changes)}" if facts.changes else ""
    text = ": ".join(part for part in (changes_text, facts.trade) if part)
    return f"{text}. (`{key}`)" if text else f"`{key}`"


def _values(place: Any, key: str, values: Any, other_values: list[Any]) -> Any:
    if isinstance(values, dict):
        return _range(place, key, values)
    selected = place.multiselect(
        title(key),
        [*values, *other_values],
        default=values,
        key=f"new-space-{words.identifier(key)}",
        format_func=partial(words.choice, key),
        accept_new_options=facts_of(key).user_extendable,
        help=knob_help(key),
        wrap=True,
    )
    return [number(item) for item in selected]


def number(item: Any) -> Any:
    """A value that was typed in is a text; the study file says what is wrong with one that is no number."""
    if not isinstance(item, str):
        return item
    try:
        return int(item) if item.lstrip("-").isdigit() else float(item)
    except ValueError:
        return item


def _range(place: Any, key: str, bounds: dict[str, Any]) -> dict[str, Any]:
    with place:
        low, high = st.columns(2, vertical_alignment="bottom")
        name = words.identifier(key)
        ends = {
            "low": low.number_input(
                f"{title(key)}, from",
                value=bounds["low"],
                format="%g",
                key=f"new-low-{name}",
                help=knob_help(key),
            ),
            "high": high.number_input("to", value=bounds["high"], format="%g", key=f"new-high-{name}"),
        }
    return bounds | ends


CHOSEN = "new-environment"
COLUMNS = 3


def environment_knobs(config: RunConfig, ranks: int) -> dict[str, Any]:
    """Those keys of a study's ``space``; what is wrong with one is said below its values."""
    kind, reason = _devices(config, ranks)
    defaults = offered_environment(kind, ranks, os.cpu_count() or 1)
    other_keys = [key for key in st.session_state.get(CHOSEN, []) if key not in defaults]
    st.markdown("**Environment variables of the ranks**")
    selected = st.multiselect(
        "Variables to search",
        [*defaults, *other_keys],
        key=CHOSEN,
        format_func=_variable_label,
        placeholder=forms.UNSET,
        filter_mode="contains",
        select_all=False,
        help="Each becomes a knob. (`space.environment`)",
    )
    if without_effect := len(VARIABLES) - len(defaults):
        st.caption(
            f"{len(defaults)} of {len(VARIABLES)} have an effect here, {without_effect} have none: {reason}."
        )
    usual = offered_environment("cuda", max(2, ranks), os.cpu_count() or 1)
    return {
        key: _environment_values(place, key, usual[key], config, _silent(key, kind, ranks))
        for place, key in zip(grid(len(selected), COLUMNS), selected, strict=False)
    }


def problem(key: str, values: list[Any], config: RunConfig) -> str | None:
    """What is wrong with the values of a variable, in one line."""
    try:
        parse_space({key: values}, config)
    except InputError as error:
        return str(error)
    return None


def _devices(config: RunConfig, ranks: int) -> tuple[str, str]:
    """Kind of device that ranks run on here, and why; GPUs that are asked for and missing are still meant."""
    try:
        selected = selection.choose(config, ranks)
    except InputError as error:
        return config.device, error.remedy
    place_text = "on GPUs" if selected.kind == "cuda" else "on the CPU, over gloo"
    return selected.kind, f"{_count(ranks)} {place_text} ({selected.reason})"


def _count(ranks: int) -> str:
    return "one rank runs" if ranks == 1 else f"{ranks} ranks run"


def _silent(key: str, kind: str, ranks: int) -> str | None:
    return ineffective_reason(key.rpartition(".")[2], kind, ranks)


def _variable_label(key: str) -> str:
    name = key.rpartition(".")[2]
    return f"{name}: {VARIABLES[name].effect}"


def _environment_values(
    place: Any, key: str, usual: list[Any], config: RunConfig, silent_here: str | None
) -> list[Any]:
    field = forms.field(RunConfig, key)
    all_there = [False, True] if field.kind is bool else field.options
    with place.container(gap="xsmall"):
        selected = st.multiselect(
            _label(key),
            [None, *(all_there or usual[1:])],
            default=usual,
            key=f"new-space-{words.identifier(key)}",
            format_func=partial(words.choice, key),
            accept_new_options=not all_there,
            help=_help(key),
            wrap=True,
        )
        values = [number(item) for item in selected]
        if problem_text := silent_here or problem(key, values, config):
            wrong_value(problem_text)
        else:
            st.caption(_bounds_text(key, field))
    return values


def _label(key: str) -> str:
    in_bytes = VARIABLES[key.rpartition(".")[2]].effect.startswith("bytes ")
    return f"{words.short(key)}, bytes" if in_bytes else words.short(key)


def _bounds_text(key: str, field: forms.FormField) -> str:
    since = VARIABLES[key.rpartition(".")[2]].since
    version_text = "" if since == "any" else f"Available from {since} on."
    return " ".join(part for part in (forms.bounds_text(field), version_text) if part)


def _help(key: str) -> str:
    variable = VARIABLES[key.rpartition(".")[2]]
    return f"{UNSET}: as the machine has it. [Documentation]({variable.source}) (`{key}`)"
