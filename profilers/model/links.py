"""What a group of ranks was measured to reach: an operation's best bandwidth, and the time that a size takes; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """T(S) = alpha + S / beta for payloads of up to ``up_to_bytes``; None: for all that are larger.

    ``bytes_per_second`` is beta in terms of the payload S; None where the size made no difference.
    Source: Hockney 1994, "The communication challenge for MPP: Intel Paragon and Meiko CS-2".
    """

    alpha_seconds: float
    bytes_per_second: float | None
    up_to_bytes: float | None = None

    def seconds(self, payload_bytes: float) -> float:
        """T(S)."""
        return self.alpha_seconds + (payload_bytes / self.bytes_per_second if self.bytes_per_second else 0.0)


def expected_seconds(segments: Iterable[Segment], payload_bytes: float) -> float | None:
    """T(S) by the segment that S belongs to; segments are in the order of sizes. None without one."""
    for segment in segments:
        if segment.up_to_bytes is None or payload_bytes <= segment.up_to_bytes:
            return segment.seconds(payload_bytes)
    return None


@dataclass(frozen=True, slots=True)
class Link:
    """One operation in groups of one size. ``peak_bandwidth`` is the best bus bandwidth measured, in bytes/s."""

    operation: str
    group_size: int
    peak_bandwidth: float | None
    segments: tuple[Segment, ...] = ()


#: By operation and group size.
Links = Mapping[tuple[str, int], Link]


def links_by_key(links: Iterable[Link]) -> Links:
    """Links under their operation and group size."""
    return {(link.operation, link.group_size): link for link in links}
