"""The door to a run's records for everybody here: files as they were written, or the Parquet they became."""

from __future__ import annotations

from pathlib import Path

from profilers.records.reader import ARCHIVED, RunRecords, Tail
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


def records(folder: Path) -> RunRecords:
    """All records of a run, from its folder ``records/``."""
    return RunRecords(folder, open_archive)


def tail(path: Path) -> Tail:
    """Follows one record file, also past the moment at which it is compacted."""
    return Tail(path, open_archive)
