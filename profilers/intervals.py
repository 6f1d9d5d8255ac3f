"""Union and overlap of time spans, for hidden and exposed communication; pure.

Spans are arrays of shape (n, 2) with start and end in seconds; an end at or before its start is no span.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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


def overlap_seconds(these: Spans, those: Spans) -> float:
    """How long a span of ``these`` and one of ``those`` last at the same time."""
    left, right = merge(these), merge(those)
    both = union_seconds(np.concatenate([left, right]))
    return max(0.0, union_seconds(left) + union_seconds(right) - both)
