"""Records that became Parquet: the same to every reader, and nothing is lost whenever the compaction is killed."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.run import run_folder
from profilers.records.codec import FormatError
from profilers.records.reader import RunRecords
from profilers.records.schema import FixedRecord, StepSample
from profilers.records.writer import RecordWriter
from tests.support.samples import comm_sample, gpu_sample, step_sample
from tests.support.workbench.synthetic import FakeRun, RunFolder
from workbench.home import compaction
from workbench.records import archive, parquet
from workbench.records.live_snapshot import LiveRun

#: Where a compaction is killed: what it has called by then.
STAGES = {
    "half of the Parquet file is written": "compaction.batches = lambda table: halves(table)",
    "it is written but not checked": "compaction._check = die",
    "it has its name and the records are still there": "Path.unlink = lambda path, missing_ok=False: die()",
}
KILLED = """
import os, signal, sys
from pathlib import Path
from workbench.home import compaction
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def halves(table):
    yield table.part(0, len(table) // 2)
    die()
{change}
compaction.compact(Path(sys.argv[1]), 0)
"""


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    run = FakeRun("20260101-000000-aaaa", {"parallel.dp": 2, "batch.micro_batch": 4}, 0.1, 40, gpus=2)
    folder = RunFolder(tmp_path, run)
    folder.write(40)
    return folder.folder


def rows(records: RunRecords) -> dict[tuple[str, str], list[FixedRecord]]:
    streams = ("step", "comm", "memory", "gpu", "host")
    return {
        (of, stream): records.table(of, stream).rows() for of in records.processes() for stream in streams
    }


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / run_folder.RECORDS).iterdir()}


def test_every_reader_sees_the_same_before_and_after(ended: Path) -> None:
    before, live = rows(archive.records(ended / run_folder.RECORDS)), LiveRun(ended).read()
    events = archive.records(ended / run_folder.RECORDS).events("rank-1")
    done = compaction.compact(ended, 0)
    assert (done.files, done.notes) == (
        10,
        [],
    )  # step, comm, memory of two ranks; gpu, host, cores and processes
    assert not {
        name for name in files(ended) if name.endswith((".step", ".comm", ".gpu", ".host", ".memory"))
    }
    after, again = archive.records(ended / run_folder.RECORDS), LiveRun(ended).read()
    assert rows(after) == before
    assert (after.ranks(), after.events("rank-1"), after.problems) == ([0, 1], events, [])
    assert again.communication == live.communication
    for name, column in live.steps[1].items():
        np.testing.assert_array_equal(again.steps[1][name], column)
    assert compaction.compact(ended, 0).files == 0


def test_steps_that_were_undone_stay_so_after_a_compaction(ended: Path) -> None:
    """Of a run that somebody sent back to a copy: no page of it could be opened once its records were compacted."""
    counts = {"step": 30, "comm": 60, "memory": 30}
    for rank in (0, 1):
        with RecordWriter(ended / run_folder.RECORDS, f"rank-{rank}") as writer:
            writer.event("undone", step=20, end=30, records=counts)
    before, live = rows(archive.records(ended / run_folder.RECORDS)), LiveRun(ended).read()
    steps = [row.step for row in before[("rank-0", "step")] if isinstance(row, StepSample)]
    assert steps == [*range(20), *range(30, 40)]
    assert compaction.compact(ended, 0).files == 10
    after, again = archive.records(ended / run_folder.RECORDS), LiveRun(ended).read()
    assert (rows(after), after.problems) == (before, [])
    for name, column in live.steps[1].items():
        np.testing.assert_array_equal(again.steps[1][name], column)


def test_what_was_chosen_of_a_compacted_file_can_be_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "GROUP", 4)
    axes = ["dp", "tp", "pp", "cp", "ep"] * 3
    records = written(tmp_path, *(comm_sample(at, axis=axis) for at, axis in enumerate(axes)))
    assert compaction.compact(tmp_path, 0).notes == []
    whole = archive.records(records).table(0, "comm")
    odd = whole.select(np.arange(15) % 2 == 1)
    assert (len(odd), odd.column("step").tolist(), odd.column("axis").tolist()) == (
        7,
        [*range(1, 15, 2)],
        axes[1::2],
    )
    assert odd.part(2, 5).column("step").tolist() == [5, 7, 9]
    assert odd.select(odd.column("step").filled(0) > 9).column("axis").tolist() == axes[11::2]
    assert odd.select(np.zeros(7, dtype=bool)).rows() == []


def test_nothing_is_compacted_while_a_run_goes_on(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, FakeRun("20260101-000000-aaaa", {}, 0.1, 9, ending=None))
    run.write(9)
    assert compaction.compact(run.folder, 0).files == 0
    assert "rank-0.step" in files(run.folder)


def test_small_files_stay(ended: Path) -> None:
    small = (ended / run_folder.RECORDS / "rank-0.step").stat().st_size + 1
    compaction.compact(ended, small)
    assert "rank-0.step" in files(ended)


@pytest.mark.parametrize("stage", STAGES)
def test_kill_9_loses_nothing(ended: Path, stage: str) -> None:
    before = rows(archive.records(ended / run_folder.RECORDS))
    script = KILLED.format(change=STAGES[stage])
    died = subprocess.run([sys.executable, "-c", script, str(ended)], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    assert rows(archive.records(ended / run_folder.RECORDS)) == before
    assert compaction.compact(ended, 0).notes == []
    assert rows(archive.records(ended / run_folder.RECORDS)) == before
    assert not {name for name in files(ended) if name.startswith(".") or name.endswith(".step")}


def test_a_follower_reads_on_across_the_compaction(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, FakeRun("20260101-000000-aaaa", {}, 0.1, 9, ending=None))
    run.write(5)
    tail, live = archive.tail(run.folder / run_folder.RECORDS / "rank-0.step"), LiveRun(run.folder)
    assert (len(tail.read_new()), len(live.read().steps[0]["step"])) == (5, 5)
    run.write_step(5)
    run.run.ending = "completed"
    run.end()
    assert compaction.compact(run.folder, 0).files > 0
    assert tail.read_new().column("step").tolist() == [5]
    assert len(tail.read_new()) == 0
    assert live.read().steps[0]["step"].tolist() == [0, 1, 2, 3, 4, 5]
    assert not tail.problems


def written(folder: Path, *records: FixedRecord) -> Path:
    run_folder.write_json(folder / run_folder.STATUS, {"state": "ended", "outcome": {"ending": "completed"}})
    (folder / run_folder.RECORDS).mkdir(exist_ok=True)
    with RecordWriter(folder / run_folder.RECORDS, "rank-0") as writer:
        for record in records:
            writer.write(record)
    return folder / run_folder.RECORDS


def test_not_a_number_and_absent_stay_what_they_were(tmp_path: Path) -> None:
    records = written(tmp_path, *(step_sample(loss=loss) for loss in (1.5, None, math.nan, -math.inf, -0.0)))
    assert compaction.compact(tmp_path, 0).files == 1
    table = archive.records(records).table(0, "step")
    assert table.column("loss").tolist() == [1.5, None, None, None, 0.0]
    kept: Any = table.column("loss").data
    assert (table.presence_mask("loss").tolist(), math.isnan(kept[2]), kept[3]) == (
        [True, False, True, True, True], True, -math.inf,
    )  # fmt: skip


def test_row_groups_and_their_names_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP", 4)
    axes = ["dp", "tp", "pp", "cp", "ep"] * 3
    records = written(tmp_path, *(comm_sample(at, axis=axis) for at, axis in enumerate(axes)))
    assert compaction.compact(tmp_path, 0).notes == []
    table = archive.records(records).table(0, "comm")
    assert table.column("axis").tolist() == axes
    for start, stop in ((0, 15), (3, 9), (4, 8), (7, 8), (14, 15), (5, 5)):
        part = table.part(start, stop)
        codes, names = part.codes("axis")
        assert (part.column("step").tolist(), part.column("axis").tolist()) == (
            [*range(start, stop)],
            axes[start:stop],
        )
        assert [names[code] for code in codes.tolist()] == axes[start:stop]


@pytest.mark.parametrize("damage", ["record", "name", "newer"])
def test_what_could_not_be_given_back_stays_as_it_is(tmp_path: Path, damage: str) -> None:
    records = written(tmp_path, *(comm_sample(step) for step in range(9)), gpu_sample())
    path = records / "rank-0.comm"
    content = path.read_bytes()
    if damage == "record":
        path.write_bytes(content[:-62] + b"\xff" * 62)
    elif damage == "name":
        (records / "rank-0.names").unlink()
    else:
        path.write_bytes(content.replace(b"float64?", b"float99?"))
    kept = path.read_bytes()
    done = compaction.compact(tmp_path, 0)
    assert (done.files, len(done.notes), path.read_bytes()) == (1, 1, kept)
    assert done.notes[0].startswith(f"{tmp_path.name}: rank-0.comm stays as it is: ")
    assert not {name for name in files(tmp_path) if name.startswith(".")}


def test_a_damaged_parquet_file_is_reported_in_one_line(ended: Path) -> None:
    compaction.compact(ended, 0)
    path = ended / run_folder.RECORDS / "rank-0.step.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    records = archive.records(ended / run_folder.RECORDS)
    assert len(records.table(0, "step")) == 0
    assert len(records.problems) == 1
    assert records.problems[0].startswith("rank-0.step: not a whole Parquet file")
    with pytest.raises(FormatError):
        archive.open_archive(path.with_suffix(""))


def test_a_reader_without_the_workbench_says_who_can_read_it(ended: Path) -> None:
    compaction.compact(ended, 0)
    records = RunRecords(ended / run_folder.RECORDS)
    assert len(records.table(0, "step")) == 0
    assert records.problems == [
        "rank-0.step: was compacted to rank-0.step.parquet, which only the workbench reads"
    ]
