"""What ranks in a lab read of their hosts' interfaces, in bytes per second."""

from pathlib import Path

import pytest

from profilers.analysis.wire_counters import interface_rows
from profilers.model.rows import InterfaceRow
from profilers.records.reader import RunRecords
from profilers.records.schema import NetworkSample
from profilers.records.writer import RecordWriter


def write(folder: Path) -> RunRecords:
    """Two hosts of two ranks, of which the first reads: 100 and 300 bytes sent a second, from second 10 to 20."""
    for rank in range(4):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            writer.event("environment", host=f"box, lab host {rank // 2}")
            for second in range(10, 21) if rank % 2 == 0 else ():
                sent = (100 + 100 * rank) * second
                writer.write(NetworkSample(float(second), "data", sent, 7 * second, 0, 0))
                writer.write(NetworkSample(float(second), "lo", 5, 5, 0, 0))
    return RunRecords(folder)


def test_each_interface_that_carried_something_has_a_row(tmp_path: Path) -> None:
    assert interface_rows(write(tmp_path)) == [
        InterfaceRow("box, lab host 0", [0, 1], "data", 100.0, 7.0),
        InterfaceRow("box, lab host 1", [2, 3], "data", 300.0, 7.0),
    ]


def test_the_readings_around_the_measured_steps_count(tmp_path: Path) -> None:
    records = write(tmp_path)
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.write(NetworkSample(100.0, "data", 1_000_000, 0, 0, 0))
    first, _ = interface_rows(RunRecords(tmp_path), (12.5, 14.5))
    assert first.sent_bytes_per_second == 100.0
    assert interface_rows(records, (1000.0, 1001.0)) == []


def test_rates_and_ranks_are_as_a_rank_told_them(tmp_path: Path) -> None:
    told = {"data": {"rate_mbit": 0.004, "ranks": [0]}, "uplink": {"rate_mbit": None, "ranks": (0, 1)}}
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.event("environment", host="box, lab host 0")
        writer.event("interfaces", interfaces=told)
        for second in range(3):
            writer.write(NetworkSample(float(second), "data", 100 * second, 250 * second, 0, 0))
            writer.write(NetworkSample(float(second), "uplink", 30 * second, 0, 0, 0))
    assert interface_rows(RunRecords(tmp_path)) == [
        InterfaceRow("box, lab host 0", [0], "data", 100.0, 250.0, 0.004, pytest.approx(0.2), 0.5),
        InterfaceRow("box, lab host 0", [0, 1], "uplink", 30.0, 0.0),
    ]


def test_ranks_outside_a_lab_have_none(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.event("environment", host="box")
    assert interface_rows(RunRecords(tmp_path)) == []
