"""A machine with AMD's GPUs, end to end through replayed answers: doctor, the page of a run, Prometheus."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.run.devices import torch_gpus
from engine.run.devices.torch_gpus import TorchGpu, TorchGpus
from profilers.gpu.amd_smi import AmdSmi
from tests.support.gpu.fake_amdsmi import MI300X, FakeAmdSmi, open_fake_amd, sampled_by_amd
from tests.support.workbench.synthetic import FakeRun, RunFolder
from tests.workbench.conftest import Run
from tests.workbench.pages.test_pages import texts, visit
from workbench.figures import gpu
from workbench.metrics.endpoint import Endpoint
from workbench.records.live_snapshot import LiveRun
from workbench.services import doctor

NEVER = "which we have never run on an AMD GPU"


@pytest.fixture
def rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's build for ROCm on two cards of two dies."""
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    told = TorchGpus(
        "2.13.0+rocm7.0", "ROCm 7.0.2", "2.22.3", ("gfx90a",), (TorchGpu("AMD Instinct MI250X"),) * 4
    )
    monkeypatch.setattr("torch.version.hip", "7.0.2")
    monkeypatch.setattr("profilers.gpu.amd_smi.AmdSmi", lambda: open_fake_amd()[0])
    monkeypatch.setattr(torch_gpus, "ask", lambda: told)


@pytest.mark.usefixtures("rocm")
def test_doctor_says_what_was_never_run(command: Run) -> None:
    done = command("doctor", "--json")
    checks = {check["name"]: check for check in done.document["checks"]}
    assert checks["torch"]["why"] == "built for ROCm 7.0.2"
    assert checks["gpu"]["value"] == "4 x AMD Instinct MI250X"
    assert checks["gpu"]["why"] == f"driver 6.7.0; read by AMD SMI, {NEVER}"
    assert checks["torch on gpu"]["value"] == "4 of 4 compute"
    assert checks["torch on gpu"]["why"] == "torch 2.13.0+rocm7.0 (built for ROCm 7.0.2), RCCL 2.22.3"
    assert f"one GPU per rank; it is RCCL here, {NEVER}" in checks["nccl"]["why"]


@pytest.fixture
def ran(home: Path) -> Callable[[str | None], RunFolder]:
    """A run beside which the sampler reads two MI300X, ended or still going."""

    def make(ending: str | None) -> RunFolder:
        run = FakeRun("20260101-000000-aaaa", {}, 1.0, 9, ending=ending, started_unix=100.0, gpus=2)
        folder = RunFolder(home, run)
        run.gpus = 0  # its own made-up readings
        module = FakeAmdSmi(path=MI300X)
        first, last = module.answers["amdsmi_get_gpu_metrics_info"]["[0]"]
        module.answers["amdsmi_get_gpu_metrics_info"]["[0]"] = [
            *(first | {"ppt_residency_acc": 250_000 + 400 * tick} for tick in range(11)),
            last | {"ppt_residency_acc": 260_000},
        ]
        sampled_by_amd(folder.launcher, module, seconds=10)
        folder.write(9)
        return folder

    return make


def test_the_page_of_a_run_says_amd(ran: Callable[[str | None], RunFolder]) -> None:
    made = ran("completed")
    app = visit("runs", id=made.run.id, section="GPUs")
    assert not app.exception
    assert "2 x AMD Instinct MI300X (AMD), read by AMD SMI" in texts(app)
    [rows] = [one.value for one in app.dataframe if "clocks throttled by" in one.value]
    held, free = rows["clocks throttled by"]
    assert held.startswith("power cap ") and free == "—"
    assert list(rows["power at most, W"]) == [717, 139]


def test_lines_are_named_by_the_vendor_s_words(ran: Callable[[str | None], RunFolder]) -> None:
    seen = LiveRun(ran("completed").folder).read()
    read_by = gpu.source(seen.launcher_events)
    drawn = gpu.detail(seen.gpu, 0, 100.0, read_by)
    assert [line.name for line in drawn.activity] == ["any activity (AMD SMI)"]
    assert [line.name for line in drawn.traffic] == ["xGMI sent", "xGMI received"]
    assert gpu.source([]) == gpu.NVML


def test_prometheus_has_the_readings(home: Path, ran: Callable[[str | None], RunFolder]) -> None:
    ran(None)
    with (
        Endpoint(home, "127.0.0.1", 0, print) as endpoint,
        urllib.request.urlopen(endpoint.url, timeout=10) as answer,
    ):
        families = text_string_to_metric_families(answer.read().decode())
        found = {
            (sample.name, sample.labels["gpu"]): sample.value
            for family in families
            for sample in family.samples
            if "gpu" in sample.labels
        }
    assert found["workbench_gpu_power_watts", "0"] == 717
    assert found["workbench_gpu_sm_clock_hertz", "1"] == 132e6
    assert found["workbench_gpu_energy_joules_total", "1"] == pytest.approx(
        (4_734_149_698_000 + 9_109_504) / 65_536
    )
    assert found["workbench_gpu_nvlink_tx_bytes_total", "0"] == 7 * 8_000_100_000
    assert ("workbench_gpu_pcie_tx_bytes_per_second", "0") not in found


def test_a_machine_without_rocm_s_library_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.hip", "7.0.2")
    monkeypatch.setattr("profilers.gpu.amd_library.load", no_library)
    [check] = doctor._gpus()
    assert (check.status, check.why) == ("missing", "libamd_smi.so was not found")
    assert AmdSmi().device_count == 0


def no_library() -> None:
    from profilers.gpu.amd_library import NoAmdSmiError

    raise NoAmdSmiError("libamd_smi.so was not found")
