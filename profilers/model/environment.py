"""What ranks told of the environment variables that their run asked for: asked, seen, used, proven or not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from profilers.records.reader import RunRecords

#: Kinds of events: what a run asked for, told as a rank begins, and what came of it, as it ends.
ASKED, PROOF = "environment_asked", "environment_proof"
YES, NO, UNTOLD = "yes", "no", "cannot be told"
#: What a rank tells that leaves it to another one: NCCL logs its choices on the first rank of a communicator alone.
ELSEWHERE = "told by another rank, if at all"
_WORST = (NO, UNTOLD, YES)


@dataclass(frozen=True, slots=True)
class EnvironmentRow:
    """One setting of a run: what was ``asked``, what the ranks' processes have (``seen``), what the library says that
    it uses, and whether that is ``proven``: yes, no, or cannot be told, with ``how``. ``ranks`` are those of which that
    is so; where ranks differ the worst counts, of those that know.
    """

    name: str
    asked: str
    seen: str | None
    used: str | None
    proven: str
    how: str
    ranks: list[int] = field(default_factory=list)


def environment_rows(records: RunRecords) -> list[EnvironmentRow]:
    """One row a setting that was asked for, in their order; none where nothing was."""
    rows_by_name: dict[str, list[EnvironmentRow]] = {}
    for rank in records.ranks():
        for row in _of_rank(records, rank):
            rows_by_name.setdefault(row.name, []).append(row)
    return [_together(rows) for rows in rows_by_name.values()]


def ineffective_settings(rows: list[EnvironmentRow]) -> str | None:
    """The settings that provably did not act, in words; None if there are none."""
    failed = [f"{row.name}={row.asked} did not take effect ({row.how})" for row in rows if row.proven == NO]
    return "; ".join(failed) or None


def _of_rank(records: RunRecords, rank: int) -> list[EnvironmentRow]:
    rows: list[EnvironmentRow] = []
    for event in records.events(rank):
        if event.kind in (ASKED, PROOF):  # the later one knows more
            rows = _read(event.data.get("rows"), rank)
    return rows


def _read(rows: object, rank: int) -> list[EnvironmentRow]:
    try:
        return [replace(row, ranks=[rank]) for row in msgspec.convert(rows, list[EnvironmentRow])]
    except msgspec.ValidationError:
        return []


def _together(rows: list[EnvironmentRow]) -> EnvironmentRow:
    knowing = [row for row in rows if row.proven != ELSEWHERE]
    rows = knowing or [replace(row, proven=UNTOLD) for row in rows]
    worst = min((row.proven for row in rows), key=_WORST.index)
    like = [row for row in rows if row.proven == worst]
    values = list(dict.fromkeys(row.seen for row in rows if row.seen is not None))
    used = list(dict.fromkeys(row.used for row in rows if row.used is not None))
    return replace(
        like[0],
        seen=", ".join(values) or None,
        used=", ".join(used) or None,
        ranks=[rank for row in like for rank in row.ranks],
    )
