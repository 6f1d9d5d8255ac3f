"""Spans of traced steps: what the main thread computed, and what was on the wire meanwhile."""

from __future__ import annotations

import numpy as np

from profilers.intervals import Array, overlap_seconds, union_seconds
from profilers.table import Table

#: Phases in which the main thread computes; a wait inside one of them is a span of its own.
COMPUTATION = ("forward", "backward", "optimizer")


def computation(spans: Table, steps: range) -> Array:
    """Begin and end in unix seconds, shape (n, 2), from the stream ``span``."""
    chosen = _within(spans, steps) & np.isin(spans.column("phase").filled(""), COMPUTATION)
    return _pairs(spans, chosen)


def communication(calls: Table, steps: range) -> Array:
    """Begin and end in unix seconds, shape (n, 2), of the calls whose end is known, from the stream ``comm``."""
    return _pairs(calls, _within(calls, steps) & ~np.ma.getmaskarray(calls.column("seconds")))


def overlap_fraction(computed: Array, communicated: Array) -> float | None:
    """How much of the time with communication under way the rank also computed; None without any.

    As in Holistic Trace Analysis (https://hta.readthedocs.io, "communication computation overlap").
    """
    whole = union_seconds(communicated)
    return overlap_seconds(computed, communicated) / whole if whole else None


def _within(table: Table, steps: range) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    numbers = table.column("step").filled(-1)
    return np.asarray((numbers >= steps.start) & (numbers < steps.stop))


def _pairs(table: Table, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Array:
    begins = table.column("start_unix")[chosen].filled(0.0)
    return np.column_stack([begins, begins + table.column("seconds")[chosen].filled(0.0)])
