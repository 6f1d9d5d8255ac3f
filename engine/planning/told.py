"""What readers of a run learn of its compression."""

from __future__ import annotations

from collections.abc import Iterable

from engine.context import RankContext
from engine.parallel.replica import Replica


def tell_left_alone(rank: RankContext, replicas: Iterable[Replica]) -> None:
    """The parameters of this rank that are sent as they are though a method is chosen; the last word counts."""
    found = {name: reason for replica in replicas for name, reason in replica.left_alone().items()}
    if rank.config.compression.method != "none":
        rank.writer.event("left_alone", parameters=found)
