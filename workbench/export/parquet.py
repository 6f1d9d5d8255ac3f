"""A run's records to take away: one Parquet file per stream, with the run and the rank beside every record."""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from engine.config.errors import InputError
from engine.run import run_folder
from profilers.records.codec import Field, fields_of
from profilers.records.reader import RunRecords
from profilers.records.schema import STREAMS, Event
from profilers.records.table import Table
from workbench.export.bundle import check_free
from workbench.records import archive
from workbench.records.parquet import arrow_columns, batches, schema_of

_OWNER_FIELDS = [pa.field("run", pa.string()), pa.field("process", pa.string()), pa.field("rank", pa.int64())]
_EVENT_FIELDS = [
    pa.field("time_unix", pa.float64()),
    pa.field("kind", pa.string()),
    pa.field("data", pa.string()),
]


def export(folder: Path, out: Path) -> dict[str, int]:
    """Write ``<stream>.parquet`` for each stream that a run has, and ``event.parquet``; file name -> records.

    Columns have the names, units and types of ``profilers.records.schema``. What was not recorded, or was not a finite
    number, is null; so is ``rank`` in records of the launcher, unless they tell of one (``process.parquet``). Data of
    an event are JSON.

    Raises:
        InputError: the folder exists and is not empty, or cannot be written.
    """
    check_free(out)
    scratch = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    try:
        scratch.mkdir(parents=True)
        counts = _write_all(folder, scratch)
        scratch.replace(out)
    except OSError as error:
        raise InputError("--out", str(out), f"cannot be written ({error.strerror}); choose another") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return counts


def _write_all(folder: Path, scratch: Path) -> dict[str, int]:
    records = archive.records(folder / run_folder.RECORDS)
    counts = {}
    for stream in STREAMS:
        tables = {process: records.table(process, stream) for process in records.processes()}
        if tables := {process: table for process, table in tables.items() if len(table)}:
            counts[f"{stream}.parquet"] = _write(folder.name, tables, scratch / f"{stream}.parquet")
    if count := _write_events(folder.name, records, scratch / "event.parquet"):
        counts["event.parquet"] = count
    return counts


def _write(run: str, tables: dict[str, Table], path: Path) -> int:
    fields = _fields(tables)
    own_names = {field.name for field in fields}
    owner_fields = [field for field in _OWNER_FIELDS if field.name not in own_names]
    schema = pa.schema([*owner_fields, *schema_of(fields)])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for process, table in tables.items():
            for part in batches(table):
                owner = _owner(run, process, len(part))
                columns = [owner[field.name] for field in owner_fields]
                columns += arrow_columns(part, fields, finite=True)
                writer.write_batch(pa.record_batch(columns, schema=schema), row_group_size=len(part))
    return sum(map(len, tables.values()))


def _fields(tables: dict[str, Table]) -> list[Field]:
    """The fields of this version, then those that a newer writer had besides."""
    known_fields = [
        field for table in tables.values() for field in (*fields_of(table.record_class), *table.layout)
    ]
    return [Field(name, base) for name, base in {field.name: field.base for field in known_fields}.items()]


def _owner(run: str, process: str, count: int) -> dict[str, pa.Array]:
    rank = pa.scalar(rank_of(process), pa.int64())
    values = {"run": pa.scalar(run), "process": pa.scalar(process), "rank": rank}
    return {name: pa.repeat(value, count) for name, value in values.items()}


def rank_of(process: str) -> int | None:
    """The number in ``rank-3``; None for another process."""
    number = process.removeprefix("rank-")
    return int(number) if process.startswith("rank-") and number.isdecimal() else None


def _write_events(run: str, records: RunRecords, path: Path) -> int:
    rows = [(process, event) for process in records.processes() for event in records.events(process)]
    if rows:
        table = [
            {"run": run, "process": process, "rank": rank_of(process)} | _plain(event)
            for process, event in rows
        ]
        pq.write_table(
            pa.Table.from_pylist(table, pa.schema([*_OWNER_FIELDS, *_EVENT_FIELDS])), path, compression="zstd"
        )
    return len(rows)


def _plain(event: Event) -> dict[str, object]:
    return asdict(event) | {"data": json.dumps(event.data, default=repr)}
