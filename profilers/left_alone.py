"""The parameters whose gradients a run sent as they are though it compresses."""

from __future__ import annotations

from profilers.tail import RunRecords


def left_alone(records: RunRecords) -> dict[str, str]:
    """Name -> reason, of all ranks; what a rank said last counts."""
    found: dict[str, str] = {}
    for rank in records.ranks():
        told = [event.data.get("parameters") for event in records.events(rank) if event.kind == "left_alone"]
        if told and isinstance(told[-1], dict):
            found |= {str(name): str(reason) for name, reason in told[-1].items()}
    return found
