"""Each rank's peak and the phase it was reached in, from records."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from profilers.analysis.memory import add_outside_bytes, memory_rows, peak
from profilers.model.machine_rows import GpuRow
from profilers.model.run_summary import MemoryRow
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from tests.support.samples import memory_sample


def records(folder: Path, *ranks: list[dict[str, Any]]) -> RunRecords:
    for rank, rows in enumerate(ranks):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            for row in rows:
                writer.write(memory_sample(**row))
    return RunRecords(folder)


def reading(step: int, phase: str | None, peak_bytes: int, **values: Any) -> dict[str, Any]:
    return {"step": step, "phase": phase, "peak_rss_bytes": peak_bytes} | values


def test_the_first_record_with_the_highest_peak_names_the_phase(tmp_path: Path) -> None:
    first = [reading(0, "forward", 100), reading(0, "backward", 150), reading(0, "optimizer", 150)]
    first += [reading(1, "forward", 150), reading(1, "backward", 150)]
    second = [reading(0, "forward", 90), reading(0, "backward", 90), reading(1, "optimizer", 160)]
    rows = memory_rows(records(tmp_path, first, second))
    assert [(row.rank, row.peak_bytes, row.phase, row.step) for row in rows] == [
        (0, 150, "backward", 0), (1, 160, "optimizer", 1),
    ]  # fmt: skip
    assert {row.kind for row in rows} == {"resident set"}
    assert peak(rows) == {
        "peak_memory_bytes": 160, "peak_memory_phase": "optimizer", "peak_memory_rank": 1,
    }  # fmt: skip


def test_on_gpus_it_is_the_allocators(tmp_path: Path) -> None:
    values: dict[str, Any] = {"cuda_allocated_bytes": 5, "cuda_inactive_split_bytes": 3}
    rows = memory_rows(records(tmp_path, [
        reading(0, "forward", 10**9, cuda_peak_bytes=70, cuda_reserved_bytes=90, **values),
        reading(1, "forward", 10**9, cuda_peak_bytes=70, cuda_reserved_bytes=80, cuda_allocation_retries=2),
    ]))  # fmt: skip
    assert (rows[0].kind, rows[0].peak_bytes, rows[0].reserved_bytes) == ("CUDA allocator", 70, 90)
    assert (rows[0].inactive_split_bytes, rows[0].allocation_retries) == (3, 2)


def test_records_from_before_phases_were_told(tmp_path: Path) -> None:
    (row,) = memory_rows(records(tmp_path, [reading(0, None, 5), reading(1, None, 9)]))
    assert (row.peak_bytes, row.phase, row.step, row.allocation_retries) == (9, None, 1, None)
    assert peak([row])["peak_memory_phase"] is None


def test_nothing_recorded(tmp_path: Path) -> None:
    assert memory_rows(RunRecords(tmp_path)) == []
    assert peak([]) == {}


def test_what_is_outside_the_allocator_comes_from_the_processes_of_a_gpu() -> None:
    """Two ranks share the first GPU; of the second one's processes NVML tells nothing."""
    rows = [MemoryRow(rank, "CUDA allocator", 60, None, 0, reserved_bytes=100) for rank in range(3)]
    gpus = [GpuRow(0, 5, ranks_memory_bytes=1200, ranks=[0, 1]), GpuRow(1, 5, ranks=[2])]
    assert [row.outside_allocator_bytes for row in add_outside_bytes(rows, gpus)] == [500, 500, None]
    unknown = [rows[0], replace(rows[1], reserved_bytes=None)]
    assert [row.outside_allocator_bytes for row in add_outside_bytes(unknown, gpus)] == [None, None]
    less = [GpuRow(0, 5, ranks_memory_bytes=150, ranks=[0, 1])]
    assert add_outside_bytes(rows[:2], less)[0].outside_allocator_bytes == 0, "read at another moment"
