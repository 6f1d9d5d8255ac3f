"""Bytes per second through interfaces that only a run's ranks use: those of a lab's hosts, read by ranks there."""

from __future__ import annotations

from typing import Any

import numpy as np

from profilers.anatomy import hosts_of
from profilers.counters import growth
from profilers.machine_rows import InterfaceRow
from profilers.table import Table
from profilers.tail import RunRecords


def interface_rows(records: RunRecords, span: tuple[float, float] | None = None) -> list[InterfaceRow]:
    """One row for each interface that a rank read, in the order of the ranks; those that carried nothing are left out.

    ``span`` are two wall-clock times: the readings around it count, or all without it.
    """
    hosts, found = hosts_of(records), []
    for rank in records.ranks():
        table, told = records.table(rank, "network"), _told(records, rank)
        beside = [other for other in hosts if hosts[other] == hosts.get(rank)] or [rank]
        for interface in sorted(set(table.column("interface").compressed().tolist())):
            ranks = list(told.get(interface, {}).get("ranks") or beside)
            speeds = _speeds(table, interface, span)
            if any(speeds):
                rate = told.get(interface, {}).get("rate_mbit")
                used = [speed * 8e-6 / rate if rate else None for speed in speeds]
                found.append(InterfaceRow(hosts.get(rank), ranks, interface, *speeds, rate, *used))
    return found


def _told(records: RunRecords, rank: int) -> dict[str, dict[str, Any]]:
    """What the rank told of interfaces before it read any."""
    told = [event.data for event in records.events(rank) if event.kind == "interfaces"]
    return dict(told[-1].get("interfaces") or {}) if told else {}


def _speeds(table: Table, interface: str, span: tuple[float, float] | None) -> tuple[float, float]:
    """Bytes per second sent and received; zeros without two readings."""
    own = np.flatnonzero((table.column("interface") == interface).filled(False))
    times = table.column("time_unix").filled(np.nan)[own]
    if span is not None:
        first = max(0, int(np.searchsorted(times, span[0], "right")) - 1)
        own, times = (values[first : int(np.searchsorted(times, span[1])) + 1] for values in (own, times))
    if len(times) < 2 or times[-1] <= times[0]:
        return 0.0, 0.0
    sent, received = (
        (growth(table.column(f"{way}_bytes")[own]) or 0) / float(times[-1] - times[0])
        for way in ("sent", "received")
    )
    return sent, received
