"""Reading while others write, and reading what is damaged, foreign or newer."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from profilers.records import codec
from profilers.records import reader as tail
from profilers.records.append_file import pack_frame
from profilers.records.codec import Field, Header
from profilers.records.reader import EventTail, RunRecords, Tail
from profilers.records.schema import UNDONE_EVENT, StepSample
from profilers.records.writer import RecordWriter
from tests.support.samples import comm_sample, gpu_sample, step_sample


def write_steps(folder: Path, steps: range, process: str = "rank-0") -> Path:
    with RecordWriter(folder, process) as writer:
        for step in steps:
            writer.write(step_sample(step))
    return folder / f"{process}.step"


def write_as(path: Path, layout: list[Field], values: bytes, record_bytes: int) -> None:
    header = Header("step", "rank-0", 1, "host", 0.0, record_bytes, layout)
    path.write_bytes(codec.encode_header(header) + values)


def steps_of(table: tail.Table) -> list[int]:
    found: list[int] = table.column("step").tolist()
    return found


def test_each_record_is_read_once(tmp_path: Path) -> None:
    reader = Tail(tmp_path / "rank-0.step")
    assert len(reader.read_new()) == 0
    write_steps(tmp_path, range(3))
    assert steps_of(reader.read_new()) == [0, 1, 2]
    assert len(reader.read_new()) == 0
    write_steps(tmp_path, range(3, 5))
    assert steps_of(reader.read_new()) == [3, 4]
    assert not reader.problems


def test_a_file_that_grows_byte_by_byte_never_shows_half_a_record(tmp_path: Path) -> None:
    whole = write_steps(tmp_path, range(3)).read_bytes()
    growing = tmp_path / "rank-1.step"
    reader, found = Tail(growing), []
    for end in range(0, len(whole) + 1, 7):
        growing.write_bytes(whole[:end])
        found += steps_of(reader.read_new())
    growing.write_bytes(whole)
    assert [*found, *steps_of(reader.read_new())] == [0, 1, 2]
    assert not reader.problems


@pytest.mark.parametrize("damage", [0x00, 0xFF])
def test_damage_in_the_middle_is_reported_and_left_out(tmp_path: Path, damage: int) -> None:
    path = write_steps(tmp_path, range(3))
    record_bytes = codec.record_struct(codec.fields_of(StepSample)).size
    content = path.read_bytes()
    path.write_bytes(content[: -2 * record_bytes] + bytes([damage]) * record_bytes + content[-record_bytes:])
    reader = Tail(path)
    assert steps_of(reader.read_new()) == [0, 2]
    assert reader.problems == ["rank-0.step: 1 damaged records left out, the first is number 1"]


def test_a_newer_writer_with_more_fields(tmp_path: Path) -> None:
    layout = [*codec.fields_of(StepSample), Field("expert_seconds", "float64"), Field("shape", "int64[3]")]
    older = codec.Encoder(StepSample, {}).encode(step_sample(7))
    mask = (1 << len(layout)) - 1
    record = struct.pack("<Q", mask) + older[8:] + struct.pack("<d3q", 0.25, 1, 2, 3)
    path = tmp_path / "rank-0.step"
    write_as(path, layout, record * 2, len(record))
    reader = Tail(path)
    table = reader.read_new()
    assert steps_of(table) == [7, 7]
    assert table.column("expert_seconds").tolist() == [0.25, 0.25]
    assert table.column("gradient_norm").tolist() == [0.0, 0.0]
    assert isinstance(table.rows()[0], StepSample)
    assert not reader.problems


def test_an_older_writer_with_fewer_fields_in_another_order(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.step"
    layout = [Field("loss", "float64?"), Field("step", "int64")]
    write_as(path, layout, struct.pack("<Qdq", 3, 1.5, 9) + struct.pack("<Qdq", 2, 0.0, 10), 24)
    table = Tail(path).read_new()
    assert steps_of(table) == [9, 10]
    assert table.column("loss").tolist() == [1.5, None]
    assert table.column("step_seconds").tolist() == [None, None]
    assert table.column("measured").tolist() == [None, None]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"nothing of ours, but long enough", "not a record file"),
        (codec.PREFIX.pack(codec.MAGIC, 9, 4) + b"1234", "format version 9"),
    ],
)
def test_a_file_that_cannot_be_understood_is_reported_once(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    path = tmp_path / "rank-0.step"
    path.write_bytes(content)
    reader = Tail(path)
    assert [len(reader.read_new()) for _ in range(3)] == [0, 0, 0]
    assert len(reader.problems) == 1
    assert problem in reader.problems[0]


def test_a_file_that_shrinks_is_reported(tmp_path: Path) -> None:
    path = write_steps(tmp_path, range(3))
    reader = Tail(path)
    assert len(reader.read_new()) == 3
    os.truncate(path, path.stat().st_size - 200)
    assert len(reader.read_new()) == 0
    assert "became shorter" in reader.problems[0]


def test_a_folder_in_place_of_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "rank-0.step").mkdir()
    (tmp_path / "rank-0.events").mkdir()
    records = RunRecords(tmp_path)
    assert (len(records.table(0, "step")), records.events(0)) == (0, [])
    assert len(records.problems) == 2


def test_a_million_records_are_mapped(tmp_path: Path) -> None:
    path = write_steps(tmp_path, range(1))
    with path.open("rb") as file:
        content = file.read()
    record_bytes = codec.record_struct(codec.fields_of(StepSample)).size
    records = np.tile(np.frombuffer(content[-record_bytes:], np.uint8), 1_000_000).reshape(-1, record_bytes)
    records[:, 8:16] = np.arange(1_000_000, dtype="<i8").view(np.uint8).reshape(-1, 8)
    path.write_bytes(content[:-record_bytes] + records.tobytes())
    table = RunRecords(tmp_path).table(0, "step")
    assert isinstance(table._data.base, np.memmap)
    assert len(table) == 1_000_000
    assert table.column("step")[-1] == 999_999


def test_events_are_read_once_and_damage_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.events"
    reader = EventTail(path)
    assert reader.read_new() == []
    with RecordWriter(tmp_path, "rank-0") as writer:
        for number in range(4):
            writer.event("tick", number=number)
    content = bytearray(path.read_bytes())
    content[len(content) // 4 + 12] ^= 0xFF
    path.write_bytes(content[:-3])
    assert [event.data["number"] for event in reader.read_new()] == [0, 2]
    assert len(reader.problems) == 1
    path.write_bytes(content)
    assert [event.data["number"] for event in reader.read_new()] == [3]
    assert len(reader.problems) == 1


def test_a_whole_frame_that_is_no_event_is_reported(tmp_path: Path) -> None:
    (tmp_path / "rank-0.events").write_bytes(pack_frame(b"\x01") + pack_frame(b"\x81\xa4kind\xa1x"))
    records = RunRecords(tmp_path)
    assert records.events(0) == []
    assert [problem.split(" (")[0] for problem in records.problems] == ["rank-0.events: not an event"] * 2


def test_a_run_has_processes_and_ranks(tmp_path: Path) -> None:
    for process in ("rank-10", "rank-2", "rank-x", "launcher"):
        write_steps(tmp_path, range(1), process)
    with RecordWriter(tmp_path, "rank-3") as writer:
        writer.event("only an event")
    (tmp_path / "notes.txt").write_text("not a record")
    records = RunRecords(tmp_path)
    assert records.processes() == ["launcher", "rank-10", "rank-2", "rank-3", "rank-x"]
    assert records.ranks() == [2, 3, 10]


def test_a_run_stays_as_it_was_read_until_refresh(tmp_path: Path) -> None:
    records = RunRecords(tmp_path)
    assert records.ranks() == []
    assert (len(records.table("launcher", "gpu")), records.events("launcher")) == (0, [])
    with RecordWriter(tmp_path, "launcher") as writer:
        writer.write(gpu_sample())
        writer.event("first")
        assert (len(records.table("launcher", "gpu")), records.events("launcher")) == (0, [])
        records.refresh()
        assert len(records.table("launcher", "gpu")) == 1
        writer.event("second")
    records.refresh()
    assert [event.kind for event in records.events("launcher")] == ["first", "second"]


def test_an_unknown_stream_is_a_key_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="colour"):
        RunRecords(tmp_path).table(0, "colour")


def test_a_stream_of_a_newer_version_is_reported_in_one_line(tmp_path: Path) -> None:
    path = write_steps(tmp_path, range(2))
    (tmp_path / "rank-0.colour").write_bytes(path.read_bytes())
    (tmp_path / "notes.txt").write_text("not a record")
    records = RunRecords(tmp_path)
    assert (records.processes(), steps_of(records.table(0, "step"))) == (["rank-0"], [0, 1])
    assert records.problems == ["rank-0.colour: a stream that this version does not know; left out"]


def test_names_that_appear_later_are_found(tmp_path: Path) -> None:
    reader = Tail(tmp_path / "rank-0.comm")
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.write(comm_sample(axis="dp"))
        assert reader.read_new().column("axis").tolist() == ["dp"]
        writer.write(comm_sample(axis="cp"))
        assert reader.read_new().column("axis").tolist() == ["cp"]


@pytest.mark.parametrize("looked_at", [7, 4096])
def test_the_newest_steps_and_their_calls_are_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_at: int
) -> None:
    monkeypatch.setattr(tail, "_LOOKED_AT", looked_at)
    with RecordWriter(tmp_path, "rank-0") as writer:
        for step in range(50):
            writer.write(step_sample(step))
            for _ in range(3):
                writer.write(comm_sample(step))
    records = RunRecords(tmp_path, newest_steps=20)
    assert steps_of(records.table(0, "step")) == list(range(30, 50))
    assert steps_of(records.table(0, "comm")) == [step for step in range(30, 50) for _ in range(3)]
    assert len(RunRecords(tmp_path, newest_steps=90).table(0, "comm")) == 150
    assert steps_of(RunRecords(tmp_path).table(0, "step")) == list(range(50))


def test_newest_steps_that_were_done_again_are_read_once(tmp_path: Path) -> None:
    """What was undone is told by numbers of records from the beginning of a file."""
    with RecordWriter(tmp_path, "rank-0") as writer:
        for step in range(100):
            writer.write(step_sample(step))
            writer.write(comm_sample(step))
        writer.event(UNDONE_EVENT, step=50, records={"step": 100, "comm": 100})
        for step in range(50, 80):
            writer.write(step_sample(step))
            writer.write(comm_sample(step))
    whole = RunRecords(tmp_path)
    assert steps_of(whole.table(0, "step")) == list(range(80))
    for newest, first in ((40, 50), (120, 10)):
        records = RunRecords(tmp_path, newest_steps=newest)
        assert steps_of(records.table(0, "step")) == list(range(first, 80))
        assert steps_of(records.table(0, "comm")) == list(range(first, 80))


def test_of_a_long_file_only_the_newest_steps_are_decoded(tmp_path: Path) -> None:
    path = write_steps(tmp_path, range(1))
    record_bytes = codec.record_struct(codec.fields_of(StepSample)).size
    content = path.read_bytes()
    path.write_bytes(content[:-record_bytes] + 20_000 * content[-record_bytes:])
    seen: list[int] = []
    reading = Tail(path)
    assert reading.skip(lambda records: seen.append(len(records)) or len(records) - 5) == 19_995
    assert (seen, len(reading.read_new())) == ([20_000], 5)
    assert Tail(tmp_path / "rank-7.step").skip(lambda records: 1) == 0
