"""How much communication is hidden behind computation, from records: what traces are held against.

Spans are begins and ends in unix seconds, shape (n, 2).
"""

from __future__ import annotations

import numpy as np

from profilers.analysis.intervals import Array, Spans, merge, union_seconds
from profilers.records.table import Table
from profilers.trace.lanes import COMPUTATION


def computation(spans: Table, steps: range) -> Array:
    """Begin and end in unix seconds, shape (n, 2), from the stream ``span``."""
    chosen = _step_mask(spans, steps) & np.isin(spans.column("phase").filled(""), COMPUTATION)
    return _pairs(spans, chosen)


def communication(calls: Table, steps: range) -> Array:
    """Begin and end in unix seconds, shape (n, 2), of the calls whose end is known, from the stream ``comm``."""
    return _pairs(calls, _step_mask(calls, steps) & ~np.ma.getmaskarray(calls.column("seconds")))


def overlap_fraction(computed: Array, communicated: Array) -> float | None:
    """How much of the time with communication under way the rank also computed; None without any.

    As in Holistic Trace Analysis (https://hta.readthedocs.io, "communication computation overlap").
    """
    whole = union_seconds(communicated)
    return overlap_seconds(computed, communicated) / whole if whole else None


def _step_mask(table: Table, steps: range) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    numbers = table.column("step").filled(-1)
    return np.asarray((numbers >= steps.start) & (numbers < steps.stop))


def _pairs(table: Table, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Array:
    begins = table.column("start_unix")[chosen].filled(0.0)
    return np.column_stack([begins, begins + table.column("seconds")[chosen].filled(0.0)])


def overlap_seconds(these: Spans, those: Spans) -> float:
    """How long a span of ``these`` and one of ``those`` last at the same time."""
    left, right = merge(these), merge(those)
    both = union_seconds(np.concatenate([left, right]))
    return max(0.0, union_seconds(left) + union_seconds(right) - both)
