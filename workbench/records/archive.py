"""The door to a run's records for everybody here: files as they were written, or the Parquet they became."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from profilers.records.reader import ARCHIVED, RunRecords, Tail, retained_records
from profilers.records.schema import Event
from profilers.records.table import Table


def archived_path(path: Path) -> Path:
    """Where a record file is compacted to."""
    return path.with_name(path.name + ARCHIVED)


def open_archive(path: Path, first: int = 0) -> Table | None:
    """The records from number ``first`` on of a record file that was compacted; None if it was not.

    Raises:
        FormatError: the Parquet file is damaged.
    """
    archived = archived_path(path)
    if not archived.is_file():
        return None
    from workbench.records.parquet import ParquetFile, ParquetTable

    file = ParquetFile(archived)
    return ParquetTable(file, min(first, file.rows), file.rows)


def records(folder: Path, newest_steps: int | None = None) -> RunRecords:
    """All records of a run, from its folder ``records/``, or those of its newest steps."""
    return RunRecords(folder, open_archive, newest_steps)


def tail(path: Path) -> Tail:
    """Follows one record file, also past the moment at which it is compacted."""
    return Tail(path, open_archive)


class RetainedRecords:
    """A record file of a rank, followed, without what the rank's events said by then was undone. What is undone later
    was read already: who follows begins anew.
    """

    def __init__(self, path: Path, events: Callable[[], Sequence[Event]]) -> None:
        self._tail, self._stream, self._events = tail(path), path.suffix[1:], events
        self._read = 0

    def read_new(self) -> Table:
        """The records that were written since the last call."""
        table = self._tail.read_new()
        before, self._read = self._read, self._read + len(table)
        return retained_records(table, self._stream, self._events(), before)

    @property
    def problems(self) -> list[str]:
        """As those of the file."""
        return self._tail.problems
