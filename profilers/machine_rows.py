"""Rows of a summary about what a run's hosts did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InterfaceRow:
    """An interface of a lab's host during the measured steps, and the ranks on that host; headers included."""

    host: str | None
    ranks: list[int]
    interface: str
    sent_bytes_per_second: float
    received_bytes_per_second: float
