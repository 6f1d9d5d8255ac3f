"""Arithmetic of time spans (union, overlap) and of counters that only grow. Pure.

Spans are arrays of shape (n, 2) with start and end in seconds; an end at or before its start is no span. A counter
that falls was reset by whoever counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from profilers.records.table import Column


def growth(counter: Column) -> int | None:
    """By how much a counter grew; what it lost when it started anew is not known and counts from zero.

    None without a reading.
    """
    counts = counter.compressed()
    if not len(counts):
        return None
    steps = np.diff(counts)
    return int(np.where(steps >= 0, steps, counts[1:]).sum())


Array = np.ndarray[Any, np.dtype[np.float64]]
Spans = Array | Sequence[tuple[float, float]]


def merge(spans: Spans) -> Array:
    """The same time as disjoint spans in ascending order."""
    ordered = np.asarray(spans, dtype=np.float64).reshape(-1, 2)
    ordered = ordered[ordered[:, 1] > ordered[:, 0]]
    if not len(ordered):
        return ordered
    ordered = ordered[np.argsort(ordered[:, 0])]
    reach = np.maximum.accumulate(ordered[:, 1])
    first = np.concatenate([[True], ordered[1:, 0] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.column_stack([ordered[first, 0], reach[last]])


def union_seconds(spans: Spans) -> float:
    """How long at least one of the spans lasts."""
    merged = merge(spans)
    return float((merged[:, 1] - merged[:, 0]).sum())
