"""The writer: what it writes, what it survives, and what it counts."""

import gc
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from profilers.records.codec import STREAM_OF, fields_of, record_struct
from profilers.records.reader import RunRecords
from profilers.records.schema import CommSample, Event, FixedRecord
from profilers.records.writer import RecordWriter
from tests.support.descriptors import open_now
from tests.support.samples import (
    comm_sample,
    gpu_sample,
    host_sample,
    memory_sample,
    short_records,
    step_sample,
)

# Writes records for ever and tells in a file of 8 bytes how many are written for sure.
ENDLESS = """
import mmap, os, sys
from pathlib import Path
from profilers.records.writer import RecordWriter
from tests.support.samples import comm_sample, short_records

folder = Path(sys.argv[1])
counter = os.open(folder / "written", os.O_RDWR | os.O_CREAT)
os.ftruncate(counter, 8)
written = mmap.mmap(counter, 8)
writer, step = RecordWriter(folder, "rank-0"), 0
while True:
    writer.write(comm_sample(step, operation=f"operation {step % 500}", bytes=7 * step))
    if step % 100 == 0:
        writer.event("mark", step=step)
    step += 1
    written[:] = step.to_bytes(8, "little")
"""

COMM_BYTES = record_struct(fields_of(CommSample)).size


@contextmanager
def files_limited_to(limit_bytes: int) -> Iterator[None]:
    """No file of this process grows above the limit; a write across it is cut short, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def steps(folder: Path, process: str = "rank-0", stream: str = "comm") -> list[int]:
    found: list[int] = RunRecords(folder).table(process, stream).column("step").tolist()
    return found


def test_every_stream_comes_back_as_it_was_written(tmp_path: Path) -> None:
    usual = step_sample(), comm_sample(seconds=None), memory_sample(), gpu_sample(3), host_sample()
    records: list[FixedRecord] = [*usual, *short_records()]
    with RecordWriter(tmp_path, "rank-0") as writer:
        for record in records:
            writer.write(record)
    read = RunRecords(tmp_path)
    assert {type(row) for row in records} == set(STREAM_OF)
    assert [read.table(0, STREAM_OF[type(row)]).rows() for row in records] == [[row] for row in records]
    assert writer.dropped == 0


def test_events_come_back_with_time_and_any_data(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "launcher") as writer:
        writer.event("started", ranks=[0, 1], nested={"x": None})
        writer.event("odd", folder=tmp_path)
    first, second = RunRecords(tmp_path).events("launcher")
    assert (first.kind, first.data) == ("started", {"ranks": [0, 1], "nested": {"x": None}})
    assert abs(first.time_unix - time.time()) < 5
    assert second.data == {"folder": repr(tmp_path)}


def test_a_record_is_in_the_file_when_write_returns(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, "rank-0")
    for step in range(3):
        writer.write(comm_sample(step))
        assert steps(tmp_path) == list(range(step + 1))
    writer.close()


def test_files_appear_with_their_first_record(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, "rank-0")
    assert not list(tmp_path.iterdir())
    writer.write(step_sample())
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.step"]


def test_a_writer_that_is_dropped_keeps_nothing_open(tmp_path: Path) -> None:
    """A page or a controller runs for days: whoever forgot to close one must not take a descriptor from it for good."""
    before = sorted(open_now())
    writer = RecordWriter(tmp_path, "rank-0")
    writer.write(step_sample())
    writer.event("opened", step=1)
    assert len(open_now()) == len(before) + 2
    del writer
    gc.collect()
    assert sorted(open_now()) == before


def test_a_second_writer_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    for step in range(3):
        with RecordWriter(tmp_path, "rank-0") as writer:
            writer.write(comm_sample(step, operation=f"operation {step}"))
            writer.event("opened", step=step)
    read = RunRecords(tmp_path)
    assert read.table(0, "comm").column("operation").tolist() == ["operation 0", "operation 1", "operation 2"]
    assert [event.data["step"] for event in read.events(0)] == [0, 1, 2]


@pytest.mark.parametrize("torn_bytes", [1, 30])
def test_a_second_writer_cuts_off_what_the_first_left_half_written(tmp_path: Path, torn_bytes: int) -> None:
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.write(comm_sample(0))
        writer.event("first")
    for name in ("rank-0.comm", "rank-0.events"):
        with (tmp_path / name).open("ab") as file:
            file.write(bytes(torn_bytes))
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.write(comm_sample(1))
        writer.event("second")
    read = RunRecords(tmp_path)
    assert read.table(0, "comm").column("step").tolist() == [0, 1]
    assert [event.kind for event in read.events(0)] == ["first", "second"]
    assert not read.problems


def test_a_file_with_another_layout_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "rank-0.comm").write_bytes(b"written by something else")
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.write(comm_sample(5))
    assert steps(tmp_path) == [5]
    assert (tmp_path / "rank-0.comm.old").read_bytes() == b"written by something else"


@pytest.mark.parametrize("attempt", range(4))
def test_kill_minus_nine_loses_and_tears_nothing(tmp_path: Path, attempt: int) -> None:
    counter = tmp_path / "written"
    child = subprocess.Popen([sys.executable, "-c", ENDLESS, str(tmp_path)], cwd=Path(__file__).parents[3])
    try:
        give_up = time.monotonic() + 20
        while not (counter.exists() and int.from_bytes(counter.read_bytes(), "little") > 300):
            assert child.poll() is None and time.monotonic() < give_up, "the writer did not get going"
            time.sleep(0.005)
        time.sleep(0.007 * attempt)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    written = int.from_bytes(counter.read_bytes(), "little")
    read = RunRecords(tmp_path)
    table = read.table(0, "comm")
    assert written <= len(table) <= written + 1
    assert table.column("step").tolist() == list(range(len(table)))
    assert table.column("bytes").tolist() == [7 * step for step in range(len(table))]
    assert table.column("operation").tolist() == [f"operation {step % 500}" for step in range(len(table))]
    noted = [event.data["step"] for event in read.events(0)]
    assert noted in (list(range(0, len(table), 100)), list(range(0, written, 100)))  # killed between the two
    assert not read.problems


def test_a_full_disk_costs_whole_records_and_is_noted(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, "rank-0")
    with files_limited_to(1000):
        for step in range(30):
            writer.write(comm_sample(step))
    fitted = len(steps(tmp_path))
    assert 5 < fitted < 20
    whole = (tmp_path / "rank-0.comm").stat().st_size
    assert writer.dropped == 30 - fitted
    assert steps(tmp_path) == list(range(fitted))
    writer.write(comm_sample(30))
    assert (tmp_path / "rank-0.comm").stat().st_size == whole + COMM_BYTES
    writer.close()
    read = RunRecords(tmp_path)
    assert steps(tmp_path) == [*range(fitted), 30]
    assert [(event.kind, event.data["count"]) for event in read.events(0)] == [("dropped", 30 - fitted)]
    assert read.events(0)[0].data["reason"]
    assert not read.problems


def test_a_torn_end_that_cannot_be_cut_off_at_once_is_cut_off_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no")

    writer = RecordWriter(tmp_path, "rank-0")
    writer.write(comm_sample(0))
    with files_limited_to((tmp_path / "rank-0.comm").stat().st_size + 10), monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        writer.write(comm_sample(1))
    writer.write(comm_sample(2))
    writer.close()
    assert steps(tmp_path) == [0, 2]


def test_a_disk_too_full_for_a_header_or_a_name(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, "rank-0")
    with files_limited_to(20):
        writer.write(step_sample())
        writer.write(comm_sample())
        writer.event("lost")
    assert writer.dropped == 3
    writer.write(step_sample(1))
    writer.write(comm_sample(1))
    writer.close()
    assert steps(tmp_path, stream="step") == [1]
    assert RunRecords(tmp_path).table(0, "comm").rows() == [comm_sample(1)]


def test_a_real_full_disk(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        writer = RecordWriter(tmp_path, "rank-0")
        for step in range(400):
            writer.write(comm_sample(step))
        fitted = steps(tmp_path)
        assert 20 < len(fitted) == 400 - writer.dropped
        subprocess.run(["mount", "-o", "remount,size=64k", str(tmp_path)], check=True)
        writer.write(comm_sample(400))
        writer.close()
        assert steps(tmp_path) == [*fitted, 400]
        assert [event.kind for event in RunRecords(tmp_path).events(0)] == ["dropped"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_missing_folder_stops_nobody_and_may_appear_later(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    writer = RecordWriter(folder, "rank-0")
    writer.write(comm_sample(0))
    writer.event("lost")
    assert (writer.dropped, writer.drop_reason) == (2, "No such file or directory")
    folder.mkdir()
    writer.write(comm_sample(1))
    writer.close()
    assert steps(folder) == [1]


def test_records_after_close_are_counted(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, "rank-0")
    writer.write(step_sample(0))
    writer.close()
    writer.close()
    writer.write(step_sample(1))
    writer.event("late")
    assert writer.dropped == 2
    assert len(RunRecords(tmp_path).table(0, "step")) == 1


def test_a_value_of_the_wrong_type_is_an_error_and_tears_nothing(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.write(comm_sample(0))
        with pytest.raises(struct.error):
            writer.write(comm_sample(1, bytes=0.5))
        writer.write(comm_sample(2))
    assert steps(tmp_path) == [0, 2]


def test_two_threads_write_whole_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def slow_write(descriptor: int, data: bytes) -> int:
        time.sleep(0.0005)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", slow_write)
    with RecordWriter(tmp_path, "rank-0") as writer:

        def work(offset: int) -> None:
            for step in range(offset, offset + 50):
                writer.write(comm_sample(step, operation=f"operation {step}"))

        threads = [threading.Thread(target=work, args=(offset,)) for offset in (0, 50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    table = RunRecords(tmp_path).table(0, "comm")
    assert sorted(table.column("step").tolist()) == list(range(100))
    assert table.column("operation").tolist() == [f"operation {step}" for step in table.column("step")]


def test_one_event_is_one_record_of_the_class_event(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.event("validation", loss=2.5)
    event = RunRecords(tmp_path).events(0)[0]
    assert event == Event(event.time_unix, "validation", {"loss": 2.5})
