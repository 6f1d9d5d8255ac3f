"""The collectives of a run, per step and rank: bytes, seconds, and the bandwidth they got."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from profilers.bandwidth import bus_bytes
from profilers.intervals import union_seconds
from profilers.run_summary import CommunicationRow
from profilers.table import Table

_Selection = np.ndarray[Any, np.dtype[np.bool_]]
_Steps = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class _Total:
    """Sums over calls; ``timed_*`` only over those whose time is known."""

    calls: int = 0
    bytes: float = 0.0
    timed_calls: int = 0
    seconds: float = 0.0
    exposed_calls: int = 0
    exposed_seconds: float = 0.0
    bus_bytes: float | None = 0.0


def communication_rows(tables: Iterable[Table], steps: _Steps, rank_steps: int) -> list[CommunicationRow]:
    """One row per axis and operation: the calls within ``steps``, divided by ``rank_steps`` (ranks x steps).

    If the time of some calls is unknown, they count with the mean of the known ones.
    """
    totals: dict[tuple[str, str], _Total] = defaultdict(_Total)
    for table in tables:
        if len(table):
            _add(totals, table, np.isin(table.column("step"), steps))
    return [_row(*key, total, rank_steps) for key, total in sorted(totals.items())]


def communication_seconds(table: Table, steps: _Steps) -> float | None:
    """How long at least one call of a rank was under way within ``steps``; None if no time is known."""
    seconds = table.column("seconds")
    known = np.isin(table.column("step"), steps) & ~np.ma.getmaskarray(seconds)
    if not known.any():
        return None
    starts = table.column("start_unix")[known].filled(0.0)
    return union_seconds(np.column_stack([starts, starts + seconds[known].filled(0.0)]))


def _add(totals: dict[tuple[str, str], _Total], table: Table, wanted: _Selection) -> None:
    (axes, axis_names), (operations, operation_names) = table.codes("axis"), table.codes("operation")
    for axis, axis_name in axis_names.items():
        of_axis = wanted & np.ma.filled(axes == axis, False)
        for operation, operation_name in operation_names.items():
            chosen = of_axis & np.ma.filled(operations == operation, False)
            if chosen.any():
                _add_calls(totals[axis_name, operation_name], table, chosen, operation_name)


def _add_calls(total: _Total, table: Table, chosen: _Selection, operation: str) -> None:
    payload, seconds = table.column("bytes")[chosen], table.column("seconds")[chosen]
    exposed, group_sizes = table.column("exposed_seconds")[chosen], table.column("group_size")[chosen]
    timed = ~np.ma.getmaskarray(seconds)
    moved = bus_bytes(operation, payload[timed], group_sizes[timed])
    total.calls += len(payload)
    total.bytes += float(payload.sum())
    total.timed_calls += int(timed.sum())
    total.seconds += float(seconds.filled(0.0).sum())
    total.exposed_calls += int(exposed.count())
    total.exposed_seconds += float(exposed.filled(0.0).sum())
    total.bus_bytes = (
        None if moved is None or total.bus_bytes is None else total.bus_bytes + float(moved.sum())
    )


def _row(axis: str, operation: str, total: _Total, rank_steps: int) -> CommunicationRow:
    calls = total.calls / rank_steps
    bandwidth = total.bus_bytes / total.seconds if total.seconds > 0 and total.bus_bytes is not None else None
    return CommunicationRow(
        axis=axis,
        operation=operation,
        calls=calls,
        bytes=total.bytes / rank_steps,
        seconds=_mean(total.seconds, total.timed_calls, calls),
        exposed_seconds=_mean(total.exposed_seconds, total.exposed_calls, calls),
        bus_bandwidth=bandwidth,
    )


def _mean(seconds: float, known_calls: int, calls: float) -> float | None:
    return seconds / known_calls * calls if known_calls else None
