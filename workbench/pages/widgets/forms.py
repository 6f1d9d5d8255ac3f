"""Widgets made from the fields of a pydantic model: label, help, bounds and choices come from the field.

What this browser asked of studies, kept until somebody answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import streamlit as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from engine.config.errors import InputError
from engine.config.sections import OneOf
from workbench.export import importing
from workbench.export.importing import ImportResult
from workbench.export.mapping import documents
from workbench.pages.widgets.common import icon_note, wrong_value
from workbench.text import words

UNSET = "not set"
#: Which trainer an imported file is of, unless somebody says it.
DETECTED = "as it looks"
#: How the keys begin of all that is typed into the form of a new study; its buttons have others.
TYPED = "new-"
#: Labels of fields whose own name says too little outside their section.
LABELS = {
    "batch.micro_batch": "Micro-batch of the baseline",
    "confirm_repeats": "Trial lengths to measure each leader again, at most",
    "confirm_runners_up": "Runners-up in each round",
    "equal_within": "Counts as equally fast (0.03 is 3 %)",
    "data.path": "Data: a UTF-8 file or folder",
    "gpu_hours": "GPU-hours of all ranks",
    "least_steps": "Minimum measured steps before a decision",
    "joules_per_token": "Maximum joules per token",
    "loss_guard.threshold": "Loss guard, fraction",
    "max_step_seconds": "Maximum seconds per step",
    "memory_headroom": "Fraction of memory to keep free",
    "memory.limit_gib": "Memory limit per CPU rank, GiB",
    "model.experts": "Experts per block",
    "money": "Money",
    "money_per_billion_tokens": "Maximum money per billion tokens",
    "prior": "Use predictions to choose what to try first",
    "seed": "Seed of the search",
    "settle": "Settled when the interval is within, fraction",
    "spread": "Noise from run to run, fraction",
    "train.seed": "Seed of the training",
    "train.step_timeout_seconds": "Seconds after which a step counts as hung",
    "train.steps": "Steps per trial",
    "train.warmup": "Warm-up steps",
    "wall_seconds": "Seconds of all trials together",
}


def keep_typed() -> None:
    """While the form of a new study is not drawn, it keeps what was typed into it: Streamlit forgets what a run does
    not draw, and whoever looks at a run meanwhile would begin anew.
    """
    for key, value in st.session_state.items():
        if str(key).startswith(TYPED) and isinstance(value, str | int | float | list | tuple):
            st.session_state[key] = value


#: What an empty field stands for.
HINTS = {"data.path": "empty: the text files that come with Python"}


@dataclass(frozen=True, slots=True)
class FormField:
    """What a widget needs to know about one field. ``exclusive`` bounds are not allowed themselves."""

    key: str
    label: str
    help: str
    kind: type
    default: Any
    optional: bool
    low: float | None = None
    high: float | None = None
    low_exclusive: bool = False
    high_exclusive: bool = False
    options: tuple[Any, ...] = ()


def field(model: type[BaseModel], key: str) -> FormField:
    """The field at a dotted key, sections being models themselves. KeyError if there is none."""
    section, info = _find(model, key)
    kind, optional, options, bounds = _plain_type(info.annotation, list(info.metadata))
    low, high = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
    form_field = FormField(
        key=key,
        label=_label(key),
        help="",
        kind=kind,
        default=info.get_default(call_default_factory=True, validated_data={}),
        optional=optional,
        low=low,
        high=high,
        low_exclusive="gt" in bounds,
        high_exclusive="lt" in bounds,
        options=options,
    )
    text = " ".join(
        part for part in (info.description or _first_line(section), bounds_text(form_field)) if part
    )
    return FormField(
        **{**{name: getattr(form_field, name) for name in form_field.__slots__}, "help": f"{text} (`{key}`)"}
    )


def _find(model: type[BaseModel], key: str) -> tuple[type[BaseModel], FieldInfo]:
    section, *inner_keys = key.split(".")
    info = model.model_fields[section]
    if not inner_keys:
        return model, info
    inner = info.annotation
    if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
        raise KeyError(key)
    return _find(inner, ".".join(inner_keys))


def _plain_type(annotation: Any, metadata: list[Any]) -> tuple[type, bool, tuple[Any, ...], dict[str, float]]:
    """The plain type below Optional, Annotated and Literal, and every bound on the way."""
    bounds = {name: bound for item in metadata for name, bound in _bounds_of(item).items()}
    if choice := next((item for item in metadata if isinstance(item, OneOf)), None):
        return str, False, tuple(choice.names()), bounds
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *other_types = get_args(annotation)
        kind, optional, options, inner_bounds = _plain_type(inner, other_types)
        return kind, optional, options, bounds | inner_bounds
    if origin in (Union, UnionType):
        inner = next(option for option in get_args(annotation) if option is not NoneType)
        kind, _, options, inner_bounds = _plain_type(inner, [])
        return kind, True, options, bounds | inner_bounds
    if origin is Literal:
        options = get_args(annotation)
        return type(options[0]), False, options, bounds
    return annotation if isinstance(annotation, type) else str, False, (), bounds


def _bounds_of(item: Any) -> dict[str, float]:
    if isinstance(item, FieldInfo):
        return {name: bound for inner in item.metadata for name, bound in _bounds_of(inner).items()}
    return {
        name: getattr(item, name)
        for name in ("ge", "gt", "le", "lt")
        if getattr(item, name, None) is not None
    }


def _label(key: str) -> str:
    name = key.rpartition(".")[2].replace("_", " ")
    return LABELS.get(key, name[:1].upper() + name[1:])


def _first_line(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").strip().partition("\n\n")[0].replace("``", "`").split())


def bounds_text(form_field: FormField) -> str:
    """What a value must be, as a sentence; empty if it may be any."""
    parts = []
    if form_field.low is not None:
        parts.append(f"{'above' if form_field.low_exclusive else 'at least'} {form_field.low:,.12g}")
    if form_field.high is not None:
        parts.append(f"{'below' if form_field.high_exclusive else 'at most'} {form_field.high:,.12g}")
    return f"Must be {' and '.join(parts)}." if parts else ""


def widget(form_field: FormField, key: str, value: Any = None, place: Any = st) -> Any:
    """Draws the widget for a field and returns what stands in it; ``value`` is used in place of the default."""
    start = form_field.default if value is None else value
    if form_field.options:
        place_of = form_field.options.index(start) if start in form_field.options else 0
        return place.selectbox(form_field.label, form_field.options, place_of, key=key, help=form_field.help)
    if form_field.kind is bool:
        return place.checkbox(form_field.label, bool(start), key=key, help=form_field.help)
    if form_field.kind in (int, float):
        return _number(form_field, key, start, place)
    hint = HINTS.get(form_field.key, UNSET) if form_field.optional else None
    text = place.text_input(form_field.label, start or "", key=key, help=form_field.help, placeholder=hint)
    return (text.strip() or None) if form_field.optional else text.strip()


def _number(form_field: FormField, key: str, start: Any, place: Any) -> Any:
    kind = form_field.kind
    low = None if form_field.low is None else kind(form_field.low)
    high = None if form_field.high is None else kind(form_field.high)
    if kind is int and high is not None and form_field.high_exclusive:
        high -= 1
    return place.number_input(
        form_field.label,
        min_value=low,
        max_value=high,
        value=None if start is None else kind(start),
        step=1 if kind is int else None,
        format="%d" if kind is int else "%g",
        key=key,
        help=form_field.help,
        placeholder=UNSET if form_field.optional else None,
    )


def section(model: type[BaseModel], keys: Mapping[str, Any], prefix: str, columns: int) -> dict[str, Any]:
    """A grid of widgets, one per key; the values of the mapping stand in them at first (None: the default)."""
    places = st.columns(columns)
    return {
        key: widget(field(model, key), f"{prefix}-{words.identifier(key)}", value, places[number % columns])
        for number, (key, value) in enumerate(keys.items())
    }


def changed_values(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the defaults: the rest would only make a file long."""
    return {key: value for key, value in values.items() if value != field(model, key).default}


def remember_command(study: str, command_id: str, description: str) -> None:
    """Keep a command of this browser."""
    st.session_state.setdefault("asked", {})[command_id] = (study, description, time.time())


def forget_command(command_id: str) -> None:
    """Its answer was read."""
    st.session_state.get("asked", {}).pop(command_id, None)


def pending_commands(study: str) -> list[tuple[str, str, float]]:
    """Id, words and time of the commands to a study, the newest first."""
    commands = st.session_state.get("asked") or {}
    return [
        (key, description, sent_unix)
        for key, (name, description, sent_unix) in commands.items()
        if name == study
    ][::-1]


def imported_file(prefix: str) -> ImportResult | None:
    """A public trainer's own file, as ``workbench import`` reads it; nothing in it runs. None while there is none
    that can be read.
    """
    upload = st.file_uploader(
        "A trainer's configuration file",
        max_upload_size=documents.MOST_MIB,
        key=f"{prefix}-file",
        width=420,
        help=f"Of {', '.join(importing.format_names())}. As `workbench import` takes it: it is read, and nothing in "
        "it runs.",
    )
    form = st.selectbox(
        "Whose file", [DETECTED, *importing.format_names()], key=f"{prefix}-format", width=420
    )
    ranks = st.number_input(
        "Ranks, if it does not say",
        1,
        None,
        None,
        key=f"{prefix}-ranks",
        width=420,
        placeholder="as the file says",
    )
    if upload is None:
        return None
    try:
        imported = importing.read_upload(
            upload.name, upload.getvalue(), None if form == DETECTED else form, ranks
        )
    except InputError as error:
        wrong_value(str(error))
        return None
    count = words.several(len(imported.values), "values")
    icon_note("check", f"{imported.format}, {words.several(imported.ranks, 'ranks')}, {count}")
    if imported.left_out:
        left_out = "; ".join(f"{key}={value}" for key, value in imported.left_out.items())
        icon_note("info", f"No settings here, and left out: {left_out}")
    return imported
