"""Counters around the measured steps -> bytes that ranks sent."""

from __future__ import annotations

from pathlib import Path

from profilers.analysis.wire_counters import ETHERNET_HEADER_BYTES, LOOPBACK_HEADER_BYTES, sent_bytes
from profilers.model.run_summary import RunFacts, RunSummary
from profilers.records.reader import RunRecords, Tail
from profilers.records.schema import NetworkSample
from profilers.records.table import Table
from profilers.records.writer import RecordWriter
from profilers.summary import summarize
from tests.support.samples import comm_sample, step_sample


def reading(time: float, interface: str, payload: int, packets: int) -> NetworkSample:
    header = LOOPBACK_HEADER_BYTES if interface == "lo" else ETHERNET_HEADER_BYTES
    return NetworkSample(time, interface, payload + header * packets, 0, packets, 0)


def table(folder: Path, *records: NetworkSample) -> Table:
    with RecordWriter(folder, "rank-0") as writer:
        writer.write_many(list(records))
    return Tail(folder / "rank-0.network").read_new()


def test_headers_are_left_out_and_the_nearest_readings_count(tmp_path: Path) -> None:
    readings = [
        *(reading(time, "data", payload, payload // 10) for time, payload in ((1, 0), (2, 50), (5, 90), (9, 400))),
        *(reading(time, "lo", payload, 3) for time, payload in ((2, 7), (5, 17))),
    ]  # fmt: skip
    assert sent_bytes([(table(tmp_path, *readings), 2.5, 4.0)]) == (40 + 10, None)


def test_what_passes_an_uplink_was_counted_where_it_was_sent(tmp_path: Path) -> None:
    readings = [
        reading(time, name, payload, 1) for name in ("data", "uplink") for time, payload in ((1, 0), (5, 90))
    ]
    assert sent_bytes([(table(tmp_path, *readings), 2.0, 4.0)]) == (90, None)


def test_a_run_that_was_cut_off_has_no_count(tmp_path: Path) -> None:
    total, reason = sent_bytes([(table(tmp_path, reading(1, "data", 0, 0)), 2.0, 3.0)])
    assert total is None
    assert reason is not None
    assert "interface data" in reason


def test_without_readings_the_reason_names_the_lab() -> None:
    total, reason = sent_bytes([])
    assert total is None
    assert reason is not None
    assert "lab.hosts" in reason


FACTS = RunFacts("run", {}, 2, "gloo", 64, None, None, "none", 0)


def summary_of(folder: Path, counted: bool, recorded: bool) -> RunSummary:
    """Two ranks and steps; each rank sends 1,000 bytes and gloo's notes a step, and rank 0's host counts for both."""
    folder.mkdir(exist_ok=True)
    first = step_sample(0).start_unix
    for rank in (0, 1):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            writer.write_many([step_sample(step) for step in (0, 1)])
            if recorded:
                writer.write_many([comm_sample(step) for step in (0, 1)])
            if counted and rank == 0:
                writer.write_many([reading(first - 1, "data", 5, 1), reading(first + 2, "data", 8005, 9)])
    return summarize(RunRecords(folder), FACTS)


def test_both_numbers_are_per_step_and_rank(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, counted=True, recorded=True)
    assert summary.wire_bytes_measured == 8000 / 4
    assert summary.wire_bytes_per_step == 1000 + 4 * 144
    assert summary.wire_bytes_reason is None


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    bare = summary_of(tmp_path / "bare", counted=False, recorded=True)
    assert (bare.wire_bytes_per_step, bare.wire_bytes_measured) == (1576, None)
    assert "lab.hosts" in str(bare.wire_bytes_reason)
    blind = summary_of(tmp_path / "blind", counted=True, recorded=False)
    assert (blind.wire_bytes_per_step, blind.wire_bytes_measured) == (None, 2000)
    assert "profile.collectives" in str(blind.wire_bytes_reason)
