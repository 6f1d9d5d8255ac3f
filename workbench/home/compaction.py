"""Record files of a run that ended become Parquet: written beside them, read back, compared, and only then removed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from engine.run import progress, run_folder
from engine.run.outcome import ending_of
from profilers.records.codec import FormatError, Header, decode_header, known_fields
from profilers.records.reader import Tail
from profilers.records.schema import STREAMS
from profilers.records.table import Table
from tuning.execution.signals import Interruption
from workbench.home import runs
from workbench.records.archive import archived_path
from workbench.records.parquet import ParquetFile, ParquetTable, arrow_columns, batches, schema_of
from workbench.text.output import say

#: Below this size a file stays as it is: Parquet's own description would take more than it saves.
LEAST_BYTES = 16 * 1024
_SCRATCH = ".compacting-"
_HEADER_READ_BYTES = 1 << 20


@dataclass(slots=True)
class CompactionResult:
    """What was done: files, their bytes before and after, and one line for each that had to stay as it is."""

    files: int = 0
    raw_bytes: int = 0
    parquet_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, other: CompactionResult) -> None:
        """Counts another run in."""
        self.files += other.files
        self.raw_bytes += other.raw_bytes
        self.parquet_bytes += other.parquet_bytes
        self.notes += other.notes


def compact(folder: Path, least_bytes: int = LEAST_BYTES) -> CompactionResult:
    """Compact what a run recorded; nothing happens while it goes on or one of its ranks still lives.

    A kill at any moment loses nothing: a record file is removed after its Parquet file is whole, on the disk, and
    was read back with the same values. The next call removes what such a kill left over.
    """
    result = CompactionResult()
    view = runs.load(folder)
    if view.state != "ended" or writers_live(view):
        return result
    _remove_leftovers(folder / run_folder.RECORDS)
    for path in candidates(folder, least_bytes):
        try:
            _compact_file(path, result)
        except (FormatError, OSError, pa.ArrowException) as error:
            result.notes.append(f"{folder.name}: {path.name} stays as it is: {_reason(error)}")
    return result


def compact_all(folders: Iterable[Path]) -> CompactionResult:
    """Compact several runs."""
    result = CompactionResult()
    for folder in folders:
        result.add(compact(folder))
    return result


def compact_at_end(folders: Iterable[Path]) -> None:
    """What a command does when its runs are over: Ctrl-C waits for it, and what could not be done is one line."""
    with Interruption():
        for note in compact_all(folders).notes:
            say(f"note: {note}")


def candidates(folder: Path, least_bytes: int = LEAST_BYTES) -> list[Path]:
    """The record files of a run that are still as they were written, and large enough."""
    files = sorted((folder / run_folder.RECORDS).glob("[!.]*.*"))
    return [path for path in files if path.suffix[1:] in STREAMS and path.stat().st_size >= least_bytes]


def _compact_file(path: Path, result: CompactionResult) -> None:
    """One file. FormatError if a reader could not get everything back from Parquet."""
    header = _header(path)
    tail = Tail(path)
    table = tail.read_new()
    if tail.problems:
        raise FormatError(tail.problems[0].removeprefix(f"{path.name}: "))
    before, scratch = path.stat().st_size, path.with_name(f"{_SCRATCH}{os.getpid()}-{path.name}")
    try:
        _write(table, header, scratch)
        _check(table, scratch)
        scratch.replace(archived_path(path))
    finally:
        scratch.unlink(missing_ok=True)
    _flush(path.parent)
    path.unlink(missing_ok=True)
    result.files += 1
    result.raw_bytes += before
    result.parquet_bytes += archived_path(path).stat().st_size


def _header(path: Path) -> Header:
    with path.open("rb") as file:
        header_and_size = decode_header(file.read(_HEADER_READ_BYTES))
    if header_and_size is None:
        raise FormatError("its header is incomplete")
    header, _ = header_and_size
    if known_fields(header) != header.fields:
        raise FormatError("a newer version wrote it, with fields that this one cannot read")
    return header


def _write(table: Table, header: Header, scratch: Path) -> None:
    schema = schema_of(header.fields, header)
    with pq.ParquetWriter(scratch, schema, compression="zstd") as writer:
        for part in batches(table):
            columns = arrow_columns(part, header.fields, finite=False)
            writer.write_batch(pa.record_batch(columns, schema=schema), row_group_size=len(part))
    _flush(scratch)


def _check(table: Table, scratch: Path) -> None:
    """FormatError unless a Parquet file holds exactly the records of a table, bit by bit."""
    file = ParquetFile(scratch)
    if file.rows != len(table):
        raise FormatError(f"{file.rows} of {len(table)} records were read back")
    back = ParquetTable(file, 0, file.rows)
    for field_ in table.layout:
        for raw_part, archived_part in zip(batches(table), batches(back), strict=True):
            if not _same(raw_part, archived_part, field_.name):
                raise FormatError(f"{field_.name} was read back with other values")


def _same(raw_part: Table, archived_part: Table, name: str) -> bool:
    recorded = raw_part.presence_mask(name)
    if not np.array_equal(recorded, archived_part.presence_mask(name)):
        return False
    a, b = (np.ascontiguousarray(table.column(name).data[recorded]) for table in (raw_part, archived_part))
    if a.dtype.kind == "f":
        a, b = a.view(np.int64), b.view(np.int64)
    return np.array_equal(a, b)


def writers_live(view: runs.RunView) -> bool:
    """Whether a rank that may still write is there, for instance of a run whose owner was killed."""
    ending = ending_of(view.outcome)
    if ending is None or not ending.facts.unseen:
        return False
    return any(psutil.pid_exists(rank.pid) for rank in progress.read(view.folder))


def _remove_leftovers(records: Path) -> None:
    """Half-made files of a compaction that was killed."""
    for path in records.glob(f"{_SCRATCH}*"):
        pid = path.name.removeprefix(_SCRATCH).partition("-")[0]
        if not pid.isdecimal() or int(pid) == os.getpid() or not psutil.pid_exists(int(pid)):
            with contextlib.suppress(OSError):
                path.unlink()


def _flush(path: Path) -> None:
    """Have a file or folder on the disk itself, so that a power cut cannot undo the order of things."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(text.split())
