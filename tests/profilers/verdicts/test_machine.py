"""Findings about the machine: memory, clocks, and GPUs without work."""

from __future__ import annotations

from pathlib import Path

from profilers.model.verdict import Setting
from profilers.records.writer import RecordWriter
from tests.support.approximate import about
from tests.support.profilers.uniform_records import gpu_run, summary, write
from tests.support.samples import host_sample, memory_sample


def test_memory_near_its_end_is_told_beside_what_costs_time(tmp_path: Path) -> None:
    write(tmp_path, [{"forward": 1.0}])
    with RecordWriter(tmp_path, "launcher") as writer:
        writer.write(host_sample(memory_used_bytes=97, memory_total_bytes=100))
    fine, full = summary(tmp_path).verdicts
    assert (fine.name, full.name, full.share) == ("compute_bound", "memory_pressure", about(0.97))
    assert "the host's memory" in full.evidence


def test_a_rank_near_its_limit_is_named(tmp_path: Path) -> None:
    write(tmp_path, [{"forward": 1.0}] * 2)
    for rank in range(2):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            writer.write(memory_sample(peak_rss_bytes=90 + 5 * rank))
    full = summary(tmp_path, Setting(memory_limit_bytes=100)).verdicts[-1]
    assert (full.name, full.rank, full.share) == ("memory_pressure", 1, about(0.95))


def test_allocations_tried_again_are_pressure_however_full_the_memory_looks(tmp_path: Path) -> None:
    gpu_run(tmp_path)
    assert [one.name for one in summary(tmp_path).verdicts] == ["compute_bound"]
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.write(memory_sample(cuda_peak_bytes=40, cuda_allocation_retries=3))
    full = summary(tmp_path).verdicts[-1]
    assert (full.name, full.share) == ("memory_pressure", 1.0)
    assert "3 allocations succeeded only" in full.evidence


def test_a_capped_clock_tells_share_reason_and_cost(tmp_path: Path) -> None:
    gpu_run(tmp_path, throttle_reasons=0x4, sm_clock_mhz=1500.0, sm_clock_max_mhz=2000.0)
    (only,) = summary(tmp_path).verdicts
    assert (only.name, only.share, only.seconds) == ("clock_cap", 1.0, about(0.25))
    assert "(power cap), at 75 % of its highest value" in only.evidence


def test_a_clock_that_someone_chose_is_no_cap(tmp_path: Path) -> None:
    gpu_run(tmp_path, throttle_reasons=0x2, sm_clock_mhz=1500.0, sm_clock_max_mhz=2000.0)
    assert [one.name for one in summary(tmp_path).verdicts] == ["compute_bound"]


def test_without_reasons_a_low_clock_of_a_busy_gpu_is_a_cap(tmp_path: Path) -> None:
    gpu_run(tmp_path, sm_clock_mhz=1500.0, sm_clock_max_mhz=2000.0)
    assert [one.name for one in summary(tmp_path).verdicts] == ["clock_cap"]


def test_a_gpu_without_kernels_is_host_bound(tmp_path: Path) -> None:
    gpu_run(tmp_path, utilization_fraction=0.4)
    (only,) = summary(tmp_path).verdicts
    assert (only.name, only.share, only.rank) == ("host_bound", about(0.6), 0)
    assert "launches kernels too slowly" in only.evidence


def test_a_few_readings_say_nothing_about_launches(tmp_path: Path) -> None:
    gpu_run(tmp_path, readings=5, utilization_fraction=0.4)
    assert [one.name for one in summary(tmp_path).verdicts] == ["compute_bound"]


def test_gpus_do_not_count_for_ranks_on_the_cpu(tmp_path: Path) -> None:
    gpu_run(tmp_path, device="cpu", utilization_fraction=0.0, throttle_reasons=0x4, memory_used_bytes=100)
    assert [one.name for one in summary(tmp_path).verdicts] == ["compute_bound"]
