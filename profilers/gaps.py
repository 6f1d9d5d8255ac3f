"""Where nothing named ran: the gaps between phases, the longest ones first; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from profilers.anatomy_rows import GapRow
from profilers.table import Table

#: Rows of a summary.
MOST_ROWS = 5


class _Gap(NamedTuple):
    seconds: float
    rank: int
    step: int


def gap_rows(tables: Mapping[int, Table], steps: np.ndarray[Any, np.dtype[np.int64]]) -> list[GapRow]:
    """Gaps by what was before and after them, those that cost most first; ``tables`` hold the ranks' spans.

    Of the ``steps`` whose spans were kept; seconds are means over those and the ranks.
    """
    gaps: dict[tuple[str | None, str | None], list[_Gap]] = defaultdict(list)
    rank_steps = 0
    for rank, table in tables.items():
        found = np.ma.getdata(table.column("step"))
        wanted = np.isin(found, steps)
        rank_steps += len(np.unique(found[wanted]))
        phases = table.column("phase")[wanted].tolist()
        seconds = table.column("seconds")[wanted].filled(0.0).tolist()
        _add(gaps, rank, found[wanted].tolist(), phases, seconds)
    rows = [_row(*key, found, rank_steps) for key, found in gaps.items()]
    return sorted(rows, key=lambda row: -row.seconds)[:MOST_ROWS]


def _add(
    gaps: dict[tuple[str | None, str | None], list[_Gap]],
    rank: int,
    steps: list[int],
    phases: list[str],
    seconds: list[float],
) -> None:
    last = len(steps) - 1
    for place, phase in enumerate(phases):
        if phase == "other":
            step = steps[place]
            after = phases[place - 1] if place and steps[place - 1] == step else None
            before = phases[place + 1] if place < last and steps[place + 1] == step else None
            gaps[after, before].append(_Gap(seconds[place], rank, step))


def _row(after: str | None, before: str | None, found: list[_Gap], rank_steps: int) -> GapRow:
    longest = max(found)
    whole = sum(gap.seconds for gap in found)
    return GapRow(after, before, whole / rank_steps, longest.seconds, longest.rank, longest.step)
