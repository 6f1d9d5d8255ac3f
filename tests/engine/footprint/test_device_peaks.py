"""The table of peaks, how a device finds its row, and the MFU of a run on such a device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from engine.config.run_config import RunConfig, parse
from engine.footprint.device_peaks import TABLE, DevicePeaks, mean_peak, peak_flops, why_unknown
from engine.footprint.flops import CONVENTION, hardware_flops_per_step, model_flops_per_step, workload_of
from engine.lifecycle import summary_of
from engine.session import Session
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from tests.support.approximate import about
from tests.support.runs import execute, small
from tests.support.samples import step_sample

# As drivers give them.
NAMES = {
    "Tesla V100-SXM2-32GB": ("fp16", 125.0),
    "Tesla V100-PCIE-16GB": ("fp16", 112.0),
    "NVIDIA A100-SXM4-80GB": ("bf16", 312.0),
    "A100-SXM4-40GB": ("bf16", 312.0),
    "NVIDIA A100 80GB PCIe": ("bf16", 312.0),
    "NVIDIA A40": ("bf16", 149.7),
    "NVIDIA L4": ("bf16", 121.0),
    "NVIDIA L40": ("bf16", 181.05),
    "NVIDIA L40S": ("bf16", 362.05),
    "NVIDIA H100 80GB HBM3": ("bf16", 989.5),
    "NVIDIA H100 PCIe": ("bf16", 756.5),
    "NVIDIA H100 NVL": ("bf16", 835.5),
    "NVIDIA H200": ("bf16", 989.5),
    "NVIDIA H200 NVL": ("bf16", 835.5),
    "NVIDIA GH200 480GB": ("bf16", 989.5),
    "NVIDIA B200": ("bf16", 2250.0),
    "NVIDIA GB200": ("bf16", 2500.0),
    "AMD Instinct MI250X": ("bf16", 191.5),
    "AMD Instinct MI300X": ("bf16", 1307.4),
    "AMD Instinct MI300X VF": ("bf16", 1307.4),
    "MI300X-O": ("bf16", 1307.4),
    "NVIDIA GeForce RTX 3090": ("bf16", 71.0),
    "NVIDIA GeForce RTX 4090": ("bf16", 165.2),
}
STRANGERS = (
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA H20",
    "NVIDIA L40G",
    "AMD Instinct MI250X / MI250",
    "Tesla T4",
)


def ids(row: DevicePeaks) -> str:
    return row.pattern


@pytest.mark.parametrize("row", TABLE, ids=ids)
def test_every_row_has_a_source_and_hangs_together(row: DevicePeaks) -> None:
    """By design fp16 and bf16 run at one rate, TF32 at half of it and fp8 at twice it; documents round."""
    assert re.search(r"(datasheet|data sheet|whitepaper)$", row.source)
    assert row.source.startswith(("NVIDIA ", "AMD "))
    peaks = row.teraflops
    assert set(peaks) <= {"fp32", "tf32", "bf16", "fp16", "fp8"}
    assert {"fp32", "fp16"} <= set(peaks)
    assert peaks.get("bf16", peaks["fp16"]) == peaks["fp16"] > peaks["fp32"]
    assert peaks.get("tf32", peaks["fp16"] / 2) == about(peaks["fp16"] / 2, rel=0.03)
    assert peaks.get("fp8", peaks["fp16"] * 2) == about(peaks["fp16"] * 2, rel=0.03)
    assert peaks.get("tf32", peaks["fp32"]) >= peaks["fp32"]


@pytest.mark.parametrize("name", NAMES)
def test_a_device_finds_its_row_and_no_other(name: str) -> None:
    dtype, teraflops = NAMES[name]
    peak = peak_flops(name, dtype)
    assert peak is not None
    assert peak.flops_per_second == about(teraflops * 1e12)
    assert peak.source.startswith(f"dense {dtype}, ")
    bare = name.removeprefix("NVIDIA ")
    assert sum(re.fullmatch(row.pattern, bare, re.IGNORECASE) is not None for row in TABLE) == 1


def test_halved_figures_say_so() -> None:
    peak = peak_flops("NVIDIA H200", "bf16")
    assert peak is not None
    assert peak.source == (
        "dense bf16, NVIDIA H200 datasheet (tensor figures are printed with sparsity and halved here)"
    )


def test_fp32_is_taken_without_tensor_cores_unless_tf32_is_on() -> None:
    plain, tf32 = peak_flops("NVIDIA H200", "fp32"), peak_flops("NVIDIA H200", "fp32", tf32=True)
    assert plain is not None and tf32 is not None
    assert (plain.flops_per_second, tf32.flops_per_second) == (67e12, 494.5e12)
    assert plain.source.startswith("dense fp32,") and tf32.source.startswith("dense tf32,")
    old = peak_flops("Tesla V100-SXM2-16GB", "fp32", tf32=True)
    assert old is not None and old.flops_per_second == about(15.7e12)
    assert peak_flops("NVIDIA H200", "bf16", tf32=True) == peak_flops("NVIDIA H200", "bf16")


@pytest.mark.parametrize("name", STRANGERS)
def test_an_unknown_device_has_no_peak_but_a_reason(name: str) -> None:
    assert peak_flops(name, "bf16") is None
    assert why_unknown(name, "bf16") == f"no published peak known for {name!r}"


def test_other_reasons() -> None:
    assert peak_flops("cpu", "fp32") is None
    assert why_unknown("cpu", "fp32").startswith("a CPU has no published peak")
    assert peak_flops("Tesla V100-SXM2-16GB", "bf16") is None
    assert why_unknown("Tesla V100-SXM2-16GB", "bf16") == (
        "no published bf16 peak known for 'Tesla V100-SXM2-16GB'"
    )
    assert mean_peak([], "fp32", False) == (None, "no rank has told its device")


def test_ranks_on_different_devices_share_the_mean() -> None:
    peak, source = mean_peak(["NVIDIA A100-SXM4-80GB", "NVIDIA H200", "NVIDIA H200"], "bf16", False)
    assert peak == about((312e12 + 2 * 989.5e12) / 3)
    assert source.count("NVIDIA A100 datasheet") == source.count("NVIDIA H200 datasheet") == 1
    assert mean_peak(["NVIDIA H200", "NVIDIA T4"], "bf16", False) == (None, why_unknown("NVIDIA T4", "bf16"))


def run_on(folder: Path, device: str, precision: str, **environment: str) -> tuple[RunConfig, RunSummary]:
    """A summary of two made-up ranks with steps of half a second, after one rank each told its device."""
    config = parse({"parallel": {"dp": 2}, "precision": precision, "memory": {"recompute": "full"}})
    for rank in range(2):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            writer.event("environment", device=device, **environment)
            for step in range(5):
                writer.write(step_sample(step, forward=0.5))
    return config, summary_of(config, "run", "nccl", RunRecords(folder))


@pytest.mark.parametrize(
    ("precision", "environment", "peak"),
    [
        ("bf16", {}, 989.5e12),
        ("fp32", {"fp32_precision": "highest"}, 67e12),
        ("fp32", {"fp32_precision": "high"}, 494.5e12),
    ],
)
def test_utilization_of_a_run(
    tmp_path: Path, precision: str, environment: dict[str, Any], peak: float
) -> None:
    config, found = run_on(tmp_path, "NVIDIA H200", precision, **environment)
    work = workload_of(config)
    assert found.model_flops_per_step == model_flops_per_step(work)
    assert found.hardware_flops_per_step == hardware_flops_per_step(work)
    assert found.peak_flops == about(peak)
    assert found.mfu == about(model_flops_per_step(work) / 0.5 / (2 * peak))
    assert found.hfu == about(hardware_flops_per_step(work) / 0.5 / (2 * peak))
    assert found.mfu_convention == CONVENTION
    assert found.peak_source is not None and "NVIDIA H200 datasheet" in found.peak_source


def test_a_cpu_has_no_utilization_but_a_reason(tmp_path: Path) -> None:
    _, found = run_on(tmp_path, "cpu", "fp32")
    assert (found.mfu, found.hfu, found.peak_flops) == (None, None, None)
    assert found.mfu_reason is not None and "a CPU has no published peak" in found.mfu_reason
    assert found.model_flops_per_second is not None


def test_ranks_tell_their_device(session: Session) -> None:
    config = small()
    outcome, found = execute(session, config)
    assert outcome.good, outcome
    assert found.model_flops_per_step == model_flops_per_step(workload_of(config))
    assert found.peak_source == "a CPU has no published peak"
    assert (found.mfu, found.hfu) == (None, None)
