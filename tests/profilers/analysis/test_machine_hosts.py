"""What the readings of hosts amount to."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from profilers.analysis.machine import host_rows
from profilers.model.machine_rows import HostRow
from profilers.records.reader import RunRecords
from profilers.records.schema import HostSample, ProcessSample, row_fields
from profilers.records.writer import RecordWriter
from tests.support.approximate import about

START = 1_700_000_000.0


def sample(second: float, cpu: float | None, used: int | None, sent: int | None) -> HostSample:
    return HostSample(START + second, cpu, used, 100, sent, sent, None, 7, None, None)


def write(folder: Path, process: str, samples: list[HostSample], ranks: tuple[int, ...]) -> None:
    with RecordWriter(folder, process) as writer:
        if process != "launcher":
            writer.event("host", name=process, ranks=list(ranks))
        writer.write_many(samples)
        writer.write_many([ProcessSample(START, rank, 1.0, *[None] * 6) for rank in ranks])


def test_means_of_each_host_within_the_span_and_rates_of_its_counters(tmp_path: Path) -> None:
    samples = [
        sample(0, 1.0, 90, 0),
        sample(1, 0.2, 40, 50),
        sample(2, None, None, None),
        sample(3, 0.6, 30, 150),
    ]
    write(tmp_path, "host-a", samples, (2, 3))
    write(tmp_path, "host-b", [sample(9, None, None, None)], (0, 1))
    second, first = host_rows(RunRecords(tmp_path), (START + 1, START + 4))[::-1]
    assert first == HostRow("b", [0, 1], 1, memory_total_bytes=100, disk_read_bytes_per_second=None)
    assert (second.host, second.ranks, second.samples) == ("a", [2, 3], 3)
    assert (second.cpu_fraction, second.memory_used_bytes) == (about(0.4), 40)
    assert second.network_sent_bytes_per_second == second.network_received_bytes_per_second == about(50.0)
    assert (second.disk_read_bytes_per_second, second.disk_written_bytes_per_second) == (0.0, None)
    assert host_rows(RunRecords(tmp_path))[1].cpu_fraction == about(0.6)


def test_the_launchers_own_host_has_no_name(tmp_path: Path) -> None:
    assert host_rows(RunRecords(tmp_path)) == []
    write(tmp_path, "launcher", [sample(0, 0.5, 10, 0)], (0,))
    (row,) = host_rows(RunRecords(tmp_path))
    assert (row.host, row.ranks, row.samples, row.cpu_fraction) == (None, [0], 1, 0.5)


def test_the_load_is_a_mean_and_switches_of_all_ranks_are_a_rate(tmp_path: Path) -> None:
    """A rank that was read once, or not at all, adds nothing."""
    with RecordWriter(tmp_path, "launcher") as writer:
        for second, load in ((0, 9.0), (1, 2.0), (3, 4.0)):
            writer.write(HostSample(START + second, *[None] * 8, load))
            for rank, switches in ((0, 100 * second), (1, 10 * second), (2, None)):
                writer.write(ProcessSample(START + second, rank, 1.0, None, None, 0, switches, None, None))
        writer.write(ProcessSample(START + 3, 3, 1.0, None, None, 0, 77, None, None))
    (row,) = host_rows(RunRecords(tmp_path), (START + 1, START + 4))
    assert (row.load_1_minute, row.involuntary_switches_per_second) == (3.0, about(110.0))


def test_every_field_of_a_summary_that_samples_name_is_there() -> None:
    named = [name for record in (HostSample, ProcessSample) for _, _, name in row_fields(record)]
    missing = set(named) - {one.name for one in fields(HostRow)}
    assert not missing, (
        "add a field of this name, with its unit, to HostRow in profilers/model/machine_rows.py"
    )
    assert len(named) == len(set(named))
