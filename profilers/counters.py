"""Counters that only grow, until whoever counts starts anew."""

from __future__ import annotations

import numpy as np

from profilers.table import Column


def growth(counter: Column) -> int | None:
    """By how much a counter grew; what it lost when it started anew is not known and counts from zero.

    None without a reading.
    """
    known = counter.compressed()
    if not len(known):
        return None
    steps = np.diff(known)
    return int(np.where(steps >= 0, steps, known[1:]).sum())
