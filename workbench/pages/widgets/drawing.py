"""A figure as a browser gets it: whole, or what is new since one that it has. Pure.

A browser that has any of the last few versions makes the newest one of them with the same piece, so that one which
never arrived is not missed. ``assets/chart.js`` puts pieces on.
"""

from __future__ import annotations

import base64
import itertools
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.figures.base import as_written

Array = np.ndarray[Any, np.dtype[Any]]
#: Attributes of a trace that are points: numbers in them go as arrays.
_POINTS = frozenset({"x", "y", "z"})
#: Whole numbers up to this have a 32-bit float of their own.
_EXACT = 2**24
_PROCESS, _VERSIONS = secrets.token_hex(4), itertools.count()


@dataclass(frozen=True, eq=False)
class Drawing:
    """One figure. Numbers of a trace's points are arrays, of the kind that is sent; the rest is what JSON can say."""

    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    #: What it is, to those who cannot see it.
    alt: str
    #: No other drawing has it, of this process or another.
    version: str = field(default_factory=lambda: f"{_PROCESS}-{next(_VERSIONS)}")

    @property
    def height(self) -> int:
        """Pixels."""
        return int(self.layout["height"])

    @cached_property
    def whole(self) -> dict[str, Any]:
        """The message for a browser that has nothing of it."""
        traces = [{name: _packed(value) for name, value in trace.items()} for trace in self.traces]
        return {"version": self.version, "data": traces, "layout": self.layout, "alt": self.alt}


def drawing_of(figure: go.Figure, alt: str) -> Drawing:
    """What a browser needs of a figure."""
    spec = figure.to_plotly_json()
    spec["layout"].pop("template", None)
    traces = [{name: _held(name, value) for name, value in trace.items()} for trace in spec["data"]]
    return Drawing([as_written(trace) for trace in traces], as_written(spec["layout"]), alt)


def piece_since(known_drawings: Sequence[Drawing], drawing: Drawing) -> dict[str, Any] | None:
    """The message that makes ``drawing`` of each of ``known_drawings``; None where none is alike enough.

    Of each trace ``append`` has, by attribute, how many points stay from the first one on and those that follow;
    ``set`` what is another one. So has ``layout``.
    """
    bases = [base for base in known_drawings if _alike(base, drawing)]
    if not bases:
        return None
    of_each = zip(*(base.traces for base in bases), strict=True)
    traces = [_new_of_trace(old_traces, new) for old_traces, new in zip(of_each, drawing.traces, strict=True)]
    layout = {
        name: value
        for name, value in drawing.layout.items()
        if any(name not in base.layout or base.layout[name] != value for base in bases)
    }
    versions = list(dict.fromkeys(base.version for base in bases))
    return {
        "version": drawing.version,
        "from": versions,
        "traces": traces,
        "layout": layout,
        "alt": drawing.alt,
    }


def _alike(old: Drawing, new: Drawing) -> bool:
    """The same traces with the same attributes, and no part of the layout that is gone."""
    return (
        [trace.keys() for trace in old.traces] == [trace.keys() for trace in new.traces]
        and [trace.get("type") for trace in old.traces] == [trace.get("type") for trace in new.traces]
        and old.layout.keys() <= new.layout.keys()
    )


def _new_of_trace(old_traces: Sequence[Mapping[str, Any]], new: Mapping[str, Any]) -> dict[str, Any]:
    appended, replaced = {}, {}
    for name, value in new.items():
        before = [old[name] for old in old_traces]
        if not isinstance(value, np.ndarray):
            if any(isinstance(old, np.ndarray) or old != value for old in before):
                replaced[name] = value
        elif not all(_extends(old, value) for old in before):
            replaced[name] = _packed(value)
        else:
            same_count = min(_count_same(old, value) for old in before)
            if any(same_count < old.shape[-1] for old in before) or same_count < value.shape[-1]:
                appended[name] = {"keep": same_count, "new": _packed(value[..., same_count:])}
    return {key: part for key, part in (("append", appended), ("set", replaced)) if part}


def _extends(old: Any, new: Array) -> bool:
    """Whether an array can have grown from another one, towards its last axis."""
    return isinstance(old, np.ndarray) and old.dtype == new.dtype and old.shape[:-1] == new.shape[:-1]


def _count_same(old: Array, new: Array) -> int:
    """How many points are the same, bit by bit, from the first one on."""
    count, bits = min(old.shape[-1], new.shape[-1]), f"u{new.dtype.itemsize}"
    is_same = old[..., :count].view(bits) == new[..., :count].view(bits)
    is_same = is_same.all(axis=tuple(range(is_same.ndim - 1)))
    return count if is_same.all() else int(is_same.argmin())


def _held(name: str, value: Any) -> Any:
    """Numbers as an array: in half the bytes where that keeps whole numbers exact and seven digits of others."""
    if isinstance(value, dict) and "bdata" in value:
        array = np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
        shape = [int(size) for size in str(value.get("shape", len(array))).split(",")]
        return _narrow(array.reshape(shape))
    if name in _POINTS and isinstance(value, list | tuple) and _are_numbers(value):
        return _narrow(np.array(value, np.float64))
    return value


def _are_numbers(values: Sequence[Any]) -> bool:
    """Whether a list holds numbers, some of which may be missing, or rows of them that are equally long."""
    if values and all(isinstance(row, list | tuple) for row in values):
        flat = [value for row in values for value in row]
        return len({len(row) for row in values}) == 1 and _are_numbers(flat)
    values_known = [value for value in values if value is not None]
    return bool(values_known) and all(
        isinstance(number, int | float) and not isinstance(number, bool) for number in values_known
    )


def _narrow(values: Array) -> Array:
    wide = values.dtype == np.float64 and np.nanmax(np.abs(values), initial=0.0) <= _EXACT
    return values.astype(np.float32) if wide else values


def _packed(value: Any) -> Any:
    """An array as Plotly writes one into JSON; everything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    encoded = {"dtype": value.dtype.str[1:], "bdata": base64.b64encode(value.tobytes()).decode("ascii")}
    return encoded | ({"shape": ", ".join(map(str, value.shape))} if value.ndim > 1 else {})
