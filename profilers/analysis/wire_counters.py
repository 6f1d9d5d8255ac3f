"""Bytes that ranks sent, from the counters of interfaces that only they use, without headers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from profilers.analysis.anatomy import hosts_of
from profilers.analysis.intervals import growth
from profilers.analysis.steps import JoinedSteps
from profilers.model.rows import InterfaceRow
from profilers.model.run_summary import CommunicationRow
from profilers.records.reader import RunRecords
from profilers.records.table import Table

#: TCP with timestamps, IPv4, and Ethernet where there is any.
ETHERNET_HEADER_BYTES, LOOPBACK_HEADER_BYTES = 66, 52
_LOOPBACK = "lo"
_UPLINK = "uplink"  # of an island: what goes through it was counted where it was sent


def wire_totals(
    records: RunRecords, measured: JoinedSteps, rows: Sequence[CommunicationRow]
) -> dict[str, Any]:
    """Bytes that a rank sent in a step by formula and by counters, the means over all; and why one is not known."""
    begins = measured.values["start_unix"]
    ends = begins + measured.values["step_seconds"]
    spans = zip(measured.ranks, begins.min(axis=1).tolist(), ends.max(axis=1).tolist(), strict=True)
    counted, reason = sent_bytes((records.table(rank, "network"), *span) for rank, *span in spans)
    steps = int(measured.steps[-1] - measured.steps[0]) + 1
    unknown = [f"{row.axis} {row.operation}" for row in rows if row.wire_bytes is None]
    if not rows and len(measured.ranks) > 1:
        unknown = ["collectives, which were not recorded (profile.collectives)"]
    formula = None if unknown else sum(row.wire_bytes or 0.0 for row in rows)
    return {
        "wire_bytes_per_step": formula,
        "wire_bytes_measured": None if counted is None else counted / (steps * len(measured.ranks)),
        "wire_bytes_reason": f"no formula for {', '.join(unknown)}" if unknown else reason,
    }


def sent_bytes(tables: Iterable[tuple[Table, float, float]]) -> tuple[float | None, str | None]:
    """Payload of TCP sent through all interfaces, or the reason why it is not known.

    Each table is the ``network`` stream of one rank, with the begin and end in unix seconds of that rank's span. The
    readings around the span count: the last before it and the first after it.
    """
    total, counted = 0.0, False
    for table, begin, end in tables:
        for interface in sorted(set(table.column("interface").compressed().tolist()) - {_UPLINK}):
            sent = _interface_bytes(table, interface, begin, end)
            if sent is None:
                return None, f"no reading of interface {interface} before and after the measured steps"
            total, counted = total + sent, True
    if not counted:
        return (
            None,
            "no counters of interfaces that only the ranks use; a run in the lab (lab.hosts) has them",
        )
    return total, None


def _interface_bytes(table: Table, interface: str, begin: float, end: float) -> float | None:
    of_it = np.ma.filled(table.column("interface") == interface, False)
    times = table.column("time_unix")[of_it].filled(np.nan)
    first, last = np.flatnonzero(times <= begin), np.flatnonzero(times >= end)
    if not len(first) or not len(last):
        return None
    header = LOOPBACK_HEADER_BYTES if interface == _LOOPBACK else ETHERNET_HEADER_BYTES
    payload = table.column("sent_bytes")[of_it] - header * table.column("sent_packets")[of_it]
    return float(payload[last[0]] - payload[first[-1]])


def interface_rows(records: RunRecords, span: tuple[float, float] | None = None) -> list[InterfaceRow]:
    """One row for each interface that a rank read, in the order of the ranks; those that carried nothing are left out.

    ``span`` are two wall-clock times: the readings around it count, or all without it.
    """
    hosts, rows = hosts_of(records), []
    for rank in records.ranks():
        table, facts = records.table(rank, "network"), _interface_facts(records, rank)
        host_ranks = [other for other in hosts if hosts[other] == hosts.get(rank)] or [rank]
        for interface in sorted(set(table.column("interface").compressed().tolist())):
            ranks = list(facts.get(interface, {}).get("ranks") or host_ranks)
            speeds = _speeds(table, interface, span)
            if any(speeds):
                rate = facts.get(interface, {}).get("rate_mbit")
                used = [speed * 8e-6 / rate if rate else None for speed in speeds]
                rows.append(InterfaceRow(hosts.get(rank), ranks, interface, *speeds, rate, *used))
    return rows


def _interface_facts(records: RunRecords, rank: int) -> dict[str, dict[str, Any]]:
    """What the rank told of interfaces before it read any."""
    data = [event.data for event in records.events(rank) if event.kind == "interfaces"]
    return dict(data[-1].get("interfaces") or {}) if data else {}


def _speeds(table: Table, interface: str, span: tuple[float, float] | None) -> tuple[float, float]:
    """Bytes per second sent and received; zeros without two readings."""
    of_interface = np.flatnonzero((table.column("interface") == interface).filled(False))
    times = table.column("time_unix").filled(np.nan)[of_interface]
    if span is not None:
        first = max(0, int(np.searchsorted(times, span[0], "right")) - 1)
        of_interface, times = (
            values[first : int(np.searchsorted(times, span[1])) + 1] for values in (of_interface, times)
        )
    if len(times) < 2 or times[-1] <= times[0]:
        return 0.0, 0.0
    sent, received = (
        (growth(table.column(f"{way}_bytes")[of_interface]) or 0) / float(times[-1] - times[0])
        for way in ("sent", "received")
    )
    return sent, received
