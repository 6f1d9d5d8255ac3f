"""What the readings of GPUs amount to."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from profilers.analysis.machine import driver_failures, gpu_notes, gpu_rows, gpus_of
from profilers.gpu.rank_gpus import RankGpus
from profilers.model.machine_rows import GpuRow
from profilers.records.reader import RunRecords
from profilers.records.schema import GROWS, Event, GpuSample, in_row, row_fields
from profilers.records.writer import RecordWriter
from tests.support.approximate import about
from tests.support.samples import gpu_sample

START = 1_700_000_000.0


def rows(
    folder: Path, readings: list[dict[str, Any]], span: tuple[float, float] | None = None
) -> list[GpuRow]:
    with RecordWriter(folder, "launcher") as writer:
        for reading in readings:
            at = START + reading.pop("second")
            writer.write(gpu_sample(reading.pop("gpu", 0), time_unix=at, **reading))
    return gpu_rows(RunRecords(folder).table("launcher", "gpu"), span)


def test_means_and_extremes_of_each_gpu(tmp_path: Path) -> None:
    readings: list[dict[str, Any]] = [
        {"second": 0, "utilization_fraction": 0.5, "power_watts": 400.0, "temperature_celsius": 60.0},
        {"second": 1, "utilization_fraction": 0.9, "power_watts": 700.0, "temperature_celsius": 71.0},
        {"second": 2, "utilization_fraction": None, "power_watts": 100.0, "temperature_celsius": 65.0},
        {"second": 0, "gpu": 3, "utilization_fraction": 0.25},
    ]
    first, other = rows(tmp_path, readings)
    assert (first.gpu, first.samples, other.gpu, other.samples) == (0, 3, 3, 1)
    assert (first.utilization, other.utilization) == (about(0.7), 0.25)
    assert (first.power_watts, first.max_power_watts, first.max_temperature_celsius) == (400.0, 700.0, 71.0)
    assert (other.power_watts, other.max_temperature_celsius, other.throttled) == (None, None, {})


def test_only_the_measured_steps_count_but_limits_hold_for_all(tmp_path: Path) -> None:
    readings: list[dict[str, Any]] = [
        {"second": second, "utilization_fraction": second / 10, "energy_joules": 500.0 * second}
        | ({"power_limit_watts": 700.0} if second == 0 else {})
        for second in range(11)
    ]
    [row] = rows(tmp_path, readings, (START + 4, START + 8))
    assert (row.samples, row.utilization, row.power_limit_watts) == (5, about(0.6), 700.0)
    assert row.energy_joules == about(2000.0)


def test_a_span_without_a_sample_falls_back_to_all(tmp_path: Path) -> None:
    readings: list[dict[str, Any]] = [
        {"second": second, "utilization_fraction": 1.0, "energy_joules": 10.0 * second} for second in range(3)
    ]
    [row] = rows(tmp_path, readings, (START + 100, START + 200))
    assert (row.samples, row.energy_joules) == (3, about(20.0))


def test_reasons_have_their_share_of_the_samples(tmp_path: Path) -> None:
    masks = [0x4, 0x4, 0x4 | 0x48, 0, None]
    [row] = rows(tmp_path, [{"second": n, "throttle_reasons": mask} for n, mask in enumerate(masks)])
    assert row.throttled == {"power cap": 0.75, "thermal slowdown by hardware": 0.25}


def test_a_counter_that_starts_anew_goes_on(tmp_path: Path) -> None:
    """The driver was loaded again after the second reading."""
    counts = [1000, 1600, 50, 90, None]
    [row] = rows(tmp_path, [{"second": n, "nvlink_tx_bytes": count} for n, count in enumerate(counts)])
    assert (row.nvlink_tx_bytes, row.nvlink_rx_bytes) == (690, None)


def test_why_there_is_none(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "launcher") as writer:
        writer.event("nvml_unavailable", reason="NVML does not start: Driver Not Loaded.")
    nobody = RankGpus([], {})
    found = gpus_of(RunRecords(tmp_path), nobody, None)
    assert found == {"gpus": [], "gpus_reason": "no GPU: NVML does not start: Driver Not Loaded."}
    assert gpus_of(RunRecords(tmp_path / "nothing"), nobody, None)["gpus_reason"] == "no GPU was sampled"


def test_a_gpu_that_did_not_answer_for_a_while_is_a_note_with_its_duration(tmp_path: Path) -> None:
    def told(kind: str, at: float, gpu: int, **data: str) -> Event:
        return Event(at, kind, {"gpu": gpu, **data})

    lost = {"function": "nvmlDeviceGetPowerUsage", "error": "GPU is lost"}
    events = [
        told("gpu_error", 100.0, 1, **lost),
        told("gpu_error", 101.0, 2, **lost),
        told("gpu_recovered", 106.5, 1),
        told("gpu_error", 110.0, 1, **lost),
    ]
    what = "did not answer nvmlDeviceGetPowerUsage: GPU is lost"
    assert driver_failures(events) == [
        f"GPU 1 {what}; it answered again after 6.5 s",
        f"GPU 2 {what}; it has not answered since",
        f"GPU 1 {what}; it has not answered since",
    ]
    with RecordWriter(tmp_path, "launcher") as writer:
        writer.event("gpu_error", gpu=2, **lost)
    assert gpu_notes(RunRecords(tmp_path)) == [f"GPU 2 {what}; it has not answered since"]
    for host in ("host-one", "host-two"):
        with RecordWriter(tmp_path, host) as writer:
            writer.event("gpu_error", gpu=2, **lost)
    assert f"GPU 2 on two {what}; it has not answered since" in gpu_notes(RunRecords(tmp_path))


def declare(monkeypatch: pytest.MonkeyPatch, name: str, facts: dict[str, Any]) -> None:
    """As if the field had been declared with these facts."""
    monkeypatch.setattr(GpuSample.__dataclass_fields__[name], "metadata", facts)


def test_what_a_summary_says_of_a_quantity_is_said_at_its_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its field's metadata and, as documents have fixed keys, a field of ``GpuRow``: one that stands in for another."""
    declare(monkeypatch, "memory_clock_mhz", in_row(mean="sm_clock_mhz", largest="sm_clock_max_mhz"))
    declare(monkeypatch, "processes", GROWS | in_row(added="ecc_corrected"))
    for name in ("sm_clock_mhz", "sm_clock_max_mhz", "ecc_corrected"):
        declare(monkeypatch, name, {})
    seen = [{"memory_clock_mhz": 1000.0, "processes": 2}, {"memory_clock_mhz": 3000.0, "processes": 7}]
    (row,) = rows(tmp_path, [{"second": second} | readings for second, readings in enumerate(seen)])
    assert (row.sm_clock_mhz, row.sm_clock_max_mhz, row.ecc_corrected) == (2000.0, 3000.0, 5)


def test_every_field_of_a_summary_that_samples_name_is_there() -> None:
    known = {one.name for one in fields(GpuRow)}
    missing = {name for _, _, name in row_fields(GpuSample)} - known
    assert not missing, (
        "add a field of this name, with its unit, to GpuRow in profilers/model/machine_rows.py"
    )
    assert len(row_fields(GpuSample)) == len({name for _, _, name in row_fields(GpuSample)})
