"""Rows of a summary about what a run's hosts did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InterfaceRow:
    """An interface of a lab during the measured steps, and the ranks that use it; headers included.

    ``data`` and ``lo`` are a host's own, ``uplink`` is the link of its island to the others. Utilizations are fractions
    of the rate in 10^6 bits per second that the interface is held to; None where it is not.
    """

    host: str | None
    ranks: list[int]
    interface: str
    sent_bytes_per_second: float
    received_bytes_per_second: float
    rate_mbit: float | None = None
    sent_utilization: float | None = None
    received_utilization: float | None = None
