"""Rows per axis and operation, and how long calls were under way."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profilers.analysis.communication import communication_rows, message_seconds_reason
from profilers.model.run_summary import CommunicationRow
from profilers.records.reader import Tail
from profilers.records.schema import CommSample
from profilers.records.table import Table
from profilers.records.writer import RecordWriter
from tests.support.approximate import about
from tests.support.samples import comm_sample

STEPS = np.array([0, 1])


def table(folder: Path, *records: CommSample, rank: int = 0) -> Table:
    with RecordWriter(folder, f"rank-{rank}") as writer:
        for record in records:
            writer.write(record)
    return Tail(folder / f"rank-{rank}.comm").read_new()


def rows(folder: Path, *records: CommSample) -> list[CommunicationRow]:
    return communication_rows([table(folder, *records)], STEPS, len(STEPS))


def test_calls_are_averaged_over_steps_and_ranks(tmp_path: Path) -> None:
    calls = [comm_sample(step, exposed_seconds=0.05) for step in (0, 0, 1, 1)]
    tables = [table(tmp_path, *calls, rank=rank) for rank in (0, 1)]
    assert communication_rows(tables, STEPS, 4) == [
        CommunicationRow("dp", "all_reduce", 2.0, 2000.0, about(0.2), about(0.1), 10_000.0, 2)
    ]


def test_calls_outside_the_measured_steps_do_not_count(tmp_path: Path) -> None:
    assert rows(tmp_path, comm_sample(-1), comm_sample(7)) == []


def test_one_row_per_axis_and_operation(tmp_path: Path) -> None:
    kinds = [("tp", "all_reduce"), ("dp", "all_gather"), ("dp", "all_reduce"), ("tp", "all_reduce")]
    found = rows(tmp_path, *(comm_sample(0, axis=axis, operation=name) for axis, name in kinds))
    assert [(row.axis, row.operation, row.calls) for row in found] == [
        ("dp", "all_gather", 0.5),
        ("dp", "all_reduce", 0.5),
        ("tp", "all_reduce", 1.0),
    ]


def test_bus_bandwidth_weighs_calls_by_their_time(tmp_path: Path) -> None:
    calls = [comm_sample(0, bytes=1000, seconds=0.1), comm_sample(1, bytes=4000, seconds=0.9, group_size=4)]
    (row,) = rows(tmp_path, *calls)
    assert row.bus_bandwidth == about((1000 * 1.0 + 4000 * 1.5) / 1.0)


def test_a_call_of_unknown_time_counts_with_the_mean_of_the_known(tmp_path: Path) -> None:
    unknown = {"seconds": None, "exposed_seconds": None}
    (row,) = rows(tmp_path, comm_sample(0, bytes=1000), comm_sample(1, bytes=3000, **unknown))
    assert (row.calls, row.bytes) == (1.0, 2000.0)
    assert (row.seconds, row.exposed_seconds) == (about(0.1), about(0.1))
    assert row.bus_bandwidth == about(10_000.0)


@pytest.mark.parametrize(
    ("values", "seconds"), [({"seconds": None}, None), ({"operation": "barrier", "bytes": 0}, 0.05)]
)
def test_an_unknown_bandwidth_is_none(tmp_path: Path, values: dict[str, Any], seconds: float | None) -> None:
    (row,) = rows(tmp_path, comm_sample(0, **values))
    assert (row.seconds, row.bus_bandwidth) == (seconds, None)


def test_a_message_has_bytes_and_waits_but_no_time_of_its_own(tmp_path: Path) -> None:
    calls = [comm_sample(step, operation="send", axis="pp", exposed_seconds=0.05) for step in (0, 1)]
    (row,) = rows(tmp_path, *calls)
    assert (row.calls, row.bytes, row.exposed_seconds) == (1.0, 1000.0, about(0.05))
    assert (row.seconds, row.bus_bandwidth) == (None, None)


def test_the_reason_names_the_messages_that_there_are() -> None:
    assert message_seconds_reason(["all_reduce", "barrier"]) is None
    assert (message_seconds_reason(["send", "all_reduce"]) or "").startswith("send: ")
    assert (message_seconds_reason(["recv", "send", "send"]) or "").startswith("send and recv: ")
