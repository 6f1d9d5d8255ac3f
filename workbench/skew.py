"""How unevenly the ranks are busy, step after step. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from workbench.joined import common_steps, rows_of
from workbench.series import MILLI, POINTS, Columns, thin


class SkewSeries(NamedTuple):
    """Busiest minus least busy rank in milliseconds, and the busiest one's number, for each step."""

    steps: list[int]
    milliseconds: list[float]
    busiest: list[int]


def skew_series(steps: Mapping[int, Columns]) -> SkewSeries:
    """Busy is the step without exposed communication and bubble, since ranks that wait end together."""
    written = {rank: columns for rank, columns in sorted(steps.items()) if len(columns.get("step", ()))}
    common = common_steps([columns["step"] for columns in written.values()])
    common = common[_known(written, common)] if len(written) > 1 else common[:0]
    if not len(common):
        return SkewSeries([], [], [])
    busy = np.stack([_busy(columns)[rows_of(columns["step"], common)] for columns in written.values()])
    skew = (busy.max(axis=0) - busy.min(axis=0)) * MILLI
    kept = thin(skew, POINTS)
    ranks = np.array(list(written))[busy.argmax(axis=0)]
    return SkewSeries(common[kept].tolist(), skew[kept].tolist(), ranks[kept].tolist())


def _known(ranks: Mapping[int, Columns], common: np.ndarray) -> np.ndarray:
    """Which steps every rank recorded in detail."""
    busy = [_busy(columns)[rows_of(columns["step"], common)] for columns in ranks.values()]
    return np.asarray(np.isfinite(busy).all(axis=0))


def _busy(columns: Columns) -> np.ndarray:
    waits = columns["communication_exposed_seconds"] + columns["bubble_seconds"]
    return np.asarray(columns["step_seconds"] - waits)
