"""What the events of a run say about its checkpoints."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from profilers.checkpoint_rows import CheckpointRow, Resumed
from profilers.tail import RunRecords

Row = TypeVar("Row")


def checkpoint_rows(records: RunRecords) -> list[CheckpointRow]:
    """Every save that was tried, in order; what cannot be read is left out."""
    found = [_converted(data, CheckpointRow) for data in _events(records, "checkpoint")]
    return [row for row in found if row is not None]


def resumed(records: RunRecords) -> Resumed | None:
    """What the run continued from."""
    return next((_converted(data, Resumed) for data in _events(records, "resumed")), None)


def _events(records: RunRecords, kind: str) -> list[dict[str, Any]]:
    """Of rank 0, which speaks for all."""
    return [event.data for event in records.events(0) if event.kind == kind] if 0 in records.ranks() else []


def _converted(data: dict[str, Any], kind: type[Row]) -> Row | None:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError:
        return None
