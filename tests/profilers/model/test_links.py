"""Measured links beside recorded calls: peaks, expected seconds, and the reason where there are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from profilers.analysis.communication import communication_rows, peak_bandwidth_reason
from profilers.model.links import Link, Links, Segment, expected_seconds, links_by_key
from profilers.model.run_summary import CommunicationRow
from profilers.records.reader import Tail
from profilers.records.writer import RecordWriter
from tests.support.samples import comm_sample

LINKS = links_by_key(
    [
        Link("all_reduce", 2, 20_000.0, (Segment(0.1, None, 1000.0), Segment(0.0, 8000.0))),
        Link("send", 2, 5_000.0, (Segment(0.2, 1000.0),)),
        Link("all_gather", 4, None),
    ]
)


def rows(folder: Path, links: Links, **values: object) -> list[CommunicationRow]:
    folder.mkdir(exist_ok=True)
    with RecordWriter(folder, "rank-0") as writer:
        for step in range(2):
            writer.write(comm_sample(step, **values))
    table = Tail(folder / "rank-0.comm").read_new()
    return communication_rows([table], np.arange(2), 2, links)


def test_time_over_payload_goes_by_segments() -> None:
    small, large = Segment(1.0, 10.0, 100.0), Segment(5.0, 100.0)
    assert expected_seconds((small, large), 100.0) == pytest.approx(11.0)
    assert expected_seconds((small, large), 200.0) == pytest.approx(7.0)
    assert expected_seconds((Segment(1.0, None),), 1e9) == 1.0
    assert expected_seconds((), 1.0) is None


def test_a_row_gets_its_links_peak_and_the_expected_time(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, LINKS, bytes=4000, seconds=0.8, group_size=2)
    assert row.bus_bandwidth == pytest.approx(5_000.0)
    assert (row.group_size, row.peak_bandwidth, row.peak_fraction) == (2, 20_000.0, pytest.approx(0.25))
    assert row.expected_seconds == pytest.approx(0.5)


@pytest.mark.parametrize("operation", ["send", "recv"])
def test_a_message_is_not_compared_with_its_link(tmp_path: Path, operation: str) -> None:
    """What is recorded of it is no transfer time; a missing calibration is not why."""
    (row,) = rows(tmp_path, LINKS, operation=operation, bytes=1000, seconds=0.4, group_size=2)
    assert (row.seconds, row.bus_bandwidth) == (None, None)
    assert (row.peak_bandwidth, row.peak_fraction, row.expected_seconds) == (None, None, None)
    assert peak_bandwidth_reason([row], "not calibrated") is None


def test_without_a_link_a_row_is_as_before(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, LINKS, group_size=3)
    assert (row.peak_bandwidth, row.peak_fraction, row.expected_seconds) == (None, None, None)


def test_a_link_without_a_peak_gives_no_fraction(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, LINKS, operation="all_gather", group_size=4)
    assert (row.peak_bandwidth, row.peak_fraction, row.expected_seconds) == (None, None, None)


def test_the_reason_is_told_once_and_says_what_to_run(tmp_path: Path) -> None:
    known = rows(tmp_path / "known", LINKS, group_size=2)
    lacking = rows(tmp_path / "lacking", LINKS, group_size=4)
    broadcast = rows(tmp_path / "broadcast", LINKS, operation="broadcast", group_size=4)
    assert peak_bandwidth_reason(known, None) is None
    assert peak_bandwidth_reason(broadcast, "not calibrated") is None
    assert peak_bandwidth_reason(lacking, "not calibrated") == "not calibrated"
    told = peak_bandwidth_reason(known + lacking, None)
    assert told is not None
    assert "all_reduce among 4 ranks" in told
    assert "workbench calibrate --ranks 4" in told
