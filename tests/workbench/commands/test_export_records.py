"""Records to take away as Parquet, read back with pyarrow alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from engine.run import run_folder
from profilers.records.schema import STREAMS
from tests.workbench.conftest import Furnished, Run
from workbench.home import compaction
from workbench.home.runs import run_folders
from workbench.records import archive


@pytest.fixture
def folder(own_home: Furnished) -> Path:
    """A finished run on four ranks with GPUs."""
    return next(folder for folder in run_folders(own_home.home) if folder.name.endswith("a7e2"))


@pytest.mark.parametrize("compacted", [False, True])
def test_what_pyarrow_reads_is_what_was_recorded(
    command: Run, folder: Path, tmp_path: Path, compacted: bool
) -> None:
    records = archive.records(folder / run_folder.RECORDS)
    wanted = {
        stream: [
            (process, row) for process in records.processes() for row in records.table(process, stream).rows()
        ]
        for stream in STREAMS
    }
    if compacted:
        assert compaction.compact(folder, 0).files
    out = tmp_path / "out"
    document = command("records", "a7e2", "--to", "parquet", "--out", out, "--json").document
    streams = [stream for stream in STREAMS if wanted[stream]]
    assert (
        document["records"].items()
        >= {f"{stream}.parquet": len(wanted[stream]) for stream in streams}.items()
    )
    assert {path.name for path in out.iterdir()} == set(document["records"])
    for stream in streams:
        found = pq.read_table(out / f"{stream}.parquet").to_pylist()
        assert [row["rank"] for row in found] == [
            getattr(row, "rank", int(process[5:]) if process.startswith("rank-") else None)
            for process, row in wanted[stream]
        ]
        own = {field.name for field in dataclasses.fields(STREAMS[stream])}
        assert [
            (row["run"], row["process"], STREAMS[stream](**{name: row[name] for name in own}))
            for row in found
        ] == [(folder.name, process, row) for process, row in wanted[stream]]


def test_columns_have_types_and_absent_is_null(command: Run, folder: Path, tmp_path: Path) -> None:
    command("records", folder.name, "--out", tmp_path / "out")
    schema = pq.read_schema(tmp_path / "out" / "comm.parquet")
    types = {name: str(schema.field(name).type) for name in ("run", "rank", "axis", "bytes", "seconds")}
    assert types == {
        "run": "string",
        "rank": "int64",
        "axis": "dictionary<values=string, indices=int32, ordered=0>",
        "bytes": "int64",
        "seconds": "double",
    }
    energy = pq.read_table(tmp_path / "out" / "gpu.parquet").column("energy_joules")
    assert energy.null_count == len(energy) > 0


def test_events_have_their_data_as_json(command: Run, folder: Path, tmp_path: Path) -> None:
    command("records", folder.name, "--out", tmp_path / "out")
    rows = pq.read_table(tmp_path / "out" / "event.parquet").to_pylist()
    validation = [row for row in rows if row["kind"] == "validation"]
    assert validation
    assert all(row["data"].startswith('{"loss": ') and row["rank"] is not None for row in validation)


def test_wrong_input_is_one_line(command: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    command("records", folder.name, "--out", tmp_path / "taken").refused("--out", "choose another")
    command("records", folder.name, "--to", "csv", "--out", tmp_path / "out").refused("csv", "parquet")
    command("records", "nothing", "--out", tmp_path / "out").refused("id", "nothing")
