"""The collectives of a run, per step and rank: bytes, seconds, and the bandwidth they got."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from profilers.collectives.bandwidth import bus_bytes
from profilers.collectives.wire_bytes import message_bytes, wire_bytes
from profilers.model.links import Links, expected_seconds
from profilers.model.run_summary import CommunicationRow
from profilers.records.operations import calibrated_operations, is_message, message_operations
from profilers.records.table import Column, Table

_Selection = np.ndarray[Any, np.dtype[np.bool_]]
_Steps = np.ndarray[Any, np.dtype[np.int64]]

_MESSAGES_REASON = (
    "a message is recorded from when it is posted until it is noticed, which is no transfer time; what the messages of "
    "a pipeline cost is told by its actions"
)


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
    group_sizes: set[int] = field(default_factory=set)
    wire_bytes: float | None = 0.0


def communication_rows(
    tables: Iterable[Table],
    steps: _Steps,
    rank_steps: int,
    links: Links | None = None,
    backend: str = "",
    exposed: Sequence[Column] | None = None,
) -> list[CommunicationRow]:
    """One row per axis and operation: the calls within ``steps``, divided by ``rank_steps`` (ranks x steps).

    If the time of some calls is unknown, they count with the mean of the known ones; that of messages always is.
    ``links`` are what a calibration measured. What goes over the wire is known for a known ``backend``. ``exposed`` are
    the seconds of each table's calls that count as such; without them all in which the main thread stood waiting, for
    whichever call: two that are under way in one wait have it both.
    """
    totals: dict[tuple[str, str], _Total] = defaultdict(_Total)
    for place, table in enumerate(tables):
        if len(table):
            waited = table.column("exposed_seconds") if exposed is None else exposed[place]
            _add(totals, table, np.isin(table.column("step"), steps), backend, waited)
    rows = [_row(*key, total, rank_steps) for key, total in sorted(totals.items())]
    return [_beside_link(row, links or {}) for row in rows]


def peak_bandwidth_reason(rows: Iterable[CommunicationRow], links_reason: str | None) -> str | None:
    """Why rows have no measured peak; None if all have one."""
    measured = [
        row for row in rows if row.operation in calibrated_operations() and not is_message(row.operation)
    ]
    without = [row for row in measured if row.peak_bandwidth is None]
    if not without or links_reason:
        return links_reason if without else None
    named = sorted({f"{row.operation} {_among(row.group_size)}" for row in without})
    most = max(row.group_size or 0 for row in without)
    remedy = f"; run `workbench calibrate --ranks {most}`" if most > 1 else ""
    return f"the calibration does not have {', '.join(named)}{remedy}"


def message_seconds_reason(operations: Iterable[str]) -> str | None:
    """Why rows of messages have no seconds, and so no bandwidth; None if there are none."""
    present = set(operations)
    named = [operation for operation in message_operations() if operation in present]
    return f"{' and '.join(named)}: {_MESSAGES_REASON}" if named else None


def _among(ranks: int | None) -> str:
    return "in groups of several sizes" if ranks is None else f"among {ranks} ranks"


def _add(
    totals: dict[tuple[str, str], _Total], table: Table, wanted: _Selection, backend: str, exposed: Column
) -> None:
    (axes, axis_names), (operations, operation_names) = table.codes("axis"), table.codes("operation")
    for axis, axis_name in axis_names.items():
        of_axis = wanted & np.ma.filled(axes == axis, False)
        for operation, operation_name in operation_names.items():
            chosen = of_axis & np.ma.filled(operations == operation, False)
            if chosen.any():
                total = totals[axis_name, operation_name]
                _add_calls(total, table, chosen, operation_name, exposed[chosen])
                total.wire_bytes = _plus(
                    total.wire_bytes, _wire_bytes(table, chosen, operation_name, backend)
                )


def _add_calls(total: _Total, table: Table, chosen: _Selection, operation: str, exposed: Column) -> None:
    payload, seconds = table.column("bytes")[chosen], table.column("seconds")[chosen]
    group_sizes = table.column("group_size")[chosen]
    timed = ~np.ma.getmaskarray(seconds)
    moved = bus_bytes(operation, payload[timed], group_sizes[timed])
    total.calls += len(payload)
    total.group_sizes |= set(np.unique(group_sizes).tolist())
    total.bytes += float(payload.sum())
    total.timed_calls += int(timed.sum())
    total.seconds += float(seconds.filled(0.0).sum())
    total.exposed_calls += int(exposed.count())
    total.exposed_seconds += float(exposed.filled(0.0).sum())
    total.bus_bytes = _plus(total.bus_bytes, None if moved is None else float(moved.sum()))


def _plus(total: float | None, increment: float | None) -> float | None:
    return None if total is None or increment is None else total + increment


def _wire_bytes(table: Table, chosen: _Selection, operation: str, backend: str) -> float | None:
    """Sent for the chosen calls, summed call by call; None if one of them is not known."""
    payload, sizes = table.column("bytes")[chosen], table.column("group_size")[chosen]
    sent_bytes = table.column("sent_bytes")[chosen]
    codes, names = table.codes("algorithm")  # masked: the backend's own
    algorithms = np.full(len(payload), -1)
    if names:
        algorithms = np.where(np.ma.getmaskarray(codes), -1, codes.data.astype(np.int64))[chosen]
    total: float | None = 0.0
    for code in np.unique(algorithms):
        for size in np.unique(sizes):
            of_size = (algorithms == code) & (sizes == size)
            call = operation, backend, names.get(int(code)), int(size)
            by_formula = wire_bytes(*call, payload[of_size])
            if by_formula is None:
                return None
            header_bytes = message_bytes(*call, payload[of_size])
            counted = np.ma.filled(sent_bytes[of_size].astype(float), np.nan) + header_bytes
            total = _plus(total, float(np.where(np.isnan(counted), by_formula, counted).sum()))
    return total


def _row(axis: str, operation: str, total: _Total, rank_steps: int) -> CommunicationRow:
    calls, timed = total.calls / rank_steps, not is_message(operation) and total.seconds > 0
    return CommunicationRow(
        axis=axis,
        operation=operation,
        calls=calls,
        bytes=total.bytes / rank_steps,
        seconds=None if is_message(operation) else _mean(total.seconds, total.timed_calls, calls),
        exposed_seconds=_mean(total.exposed_seconds, total.exposed_calls, calls),
        bus_bandwidth=total.bus_bytes / total.seconds if timed and total.bus_bytes is not None else None,
        group_size=next(iter(total.group_sizes)) if len(total.group_sizes) == 1 else None,
        wire_bytes=None if total.wire_bytes is None else total.wire_bytes / rank_steps,
    )


def _beside_link(row: CommunicationRow, links: Links) -> CommunicationRow:
    """The row with what its link was measured to reach."""
    link = None if row.group_size is None else links.get((row.operation, row.group_size))
    if link is None or is_message(row.operation):
        return row
    reached, peak = row.bus_bandwidth, link.peak_bandwidth
    seconds_per_call = expected_seconds(link.segments, row.bytes / row.calls)
    return replace(
        row,
        peak_bandwidth=peak,
        peak_fraction=reached / peak if reached is not None and peak else None,
        expected_seconds=None if seconds_per_call is None else seconds_per_call * row.calls,
    )


def _mean(seconds: float, known_calls: int, calls: float) -> float | None:
    return seconds / known_calls * calls if known_calls else None
