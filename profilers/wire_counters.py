"""Counters of the ranks' own interfaces -> bytes they sent within a span of steps, headers left out; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from profilers.run_summary import CommunicationRow
from profilers.step_join import JoinedSteps
from profilers.table import Table
from profilers.tail import RunRecords

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
    total, found = 0.0, False
    for table, begin, end in tables:
        for interface in sorted(set(table.column("interface").compressed().tolist()) - {_UPLINK}):
            sent = _interface_bytes(table, interface, begin, end)
            if sent is None:
                return None, f"no reading of interface {interface} before and after the measured steps"
            total, found = total + sent, True
    if not found:
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
