"""GPU performance monitoring, on tests/data/nvml_h100.json (SM occupancy is recorded, the rest composed)."""

import math

import pytest

from profilers.gpu.gpm import METRICS
from profilers.gpu.nvml import Nvml
from tests.support.approximate import about
from tests.support.gpu.fake_nvml import NOT_SUPPORTED, FakeNvml, NVMLError
from tests.support.samples import gpu_sample

MIB = 2**20


def test_the_second_reading_has_means_in_their_units() -> None:
    library = Nvml(FakeNvml(), wall_clock=lambda: 5.0)
    first, second = library.sample(0), library.sample(0)
    assert all(getattr(first, field) is None for field in METRICS)
    assert {field: getattr(second, field) for field in METRICS} == about(
        {
            "sm_active_fraction": 0.415,
            "sm_occupancy_fraction": 0.07739499086738595,
            "tensor_active_fraction": 0.2325,
            "dram_active_fraction": 0.3575,
            "pcie_tx_bytes_per_second": 512 * MIB,
            "pcie_rx_bytes_per_second": 256 * MIB,
            "nvlink_tx_bytes_per_second": 2048 * MIB,
            "nvlink_rx_bytes_per_second": 1024 * MIB,
        }
    )


def test_each_gpu_has_its_own_two_samples_which_go_back_at_the_end() -> None:
    module = FakeNvml()
    library = Nvml(module)
    for _ in range(3):
        occupancies = [library.sample(gpu).sm_occupancy_fraction for gpu in (0, 1)]
    assert occupancies == [about(0.07739499086738595), about(0.12030642535682517)]
    library.close()
    assert module.calls.count("nvmlGpmSampleAlloc") == module.calls.count("nvmlGpmSampleFree") == 4
    assert module.calls[-1] == "nvmlShutdown"


def test_gpm_spares_the_slow_pcie_counters() -> None:
    module = FakeNvml()
    library = Nvml(module)
    for _ in range(3):
        library.sample(0)
    assert "nvmlDeviceGetPcieThroughput" not in module.calls


def test_a_gpu_that_has_none_is_asked_once() -> None:
    module = FakeNvml()
    module.answers["nvmlGpmQueryDeviceSupport"]["[0]"] = [{"isSupportedDevice": 0}]
    library = Nvml(module)
    for _ in range(3):
        assert library.sample(0).sm_active_fraction is None
    assert module.calls.count("nvmlGpmQueryDeviceSupport") == 1
    assert "nvmlGpmSampleAlloc" not in module.calls
    assert library.missing == []


@pytest.mark.parametrize(
    "function", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"]
)
def test_each_missing_function_is_told_once(function: str) -> None:
    module = FakeNvml({function: NVMLError("Not Supported", NOT_SUPPORTED)})
    library = Nvml(module)
    for _ in range(3):
        sample = library.sample(0)
        assert (sample.sm_active_fraction, sample.temperature_celsius) == (None, 29)
    assert library.missing == [f"{function}: Not Supported"]


def test_a_metric_that_is_not_there_leaves_the_others() -> None:
    module = FakeNvml()
    recorded = module.answers["nvmlGpmMetricsGet"]["[0]"][0]["metrics"]
    for metric in recorded:
        if metric["metricId"] == 5:
            metric["nvmlReturn"] = NOT_SUPPORTED
        if metric["metricId"] == 10:
            metric["value"] = math.nan
    library = Nvml(module)
    library.sample(0)
    sample = library.sample(0)
    assert (sample.tensor_active_fraction, sample.dram_active_fraction) == (None, None)
    assert sample.sm_active_fraction == about(0.415)
    assert library.missing == ["NVML_GPM_METRIC_ANY_TENSOR_UTIL: NVML error 3"]


def test_after_an_error_the_means_begin_anew() -> None:
    """A mean over the time of the error would be of an unknown stretch."""
    module = FakeNvml()
    library = Nvml(module, wall_clock=lambda: 5.0)
    library.sample(0)
    assert library.sample(0).sm_active_fraction is not None
    module.broken["nvmlGpmSampleGet"] = NVMLError("Timeout", 10)
    assert library.sample(0).sm_active_fraction is None
    del module.broken["nvmlGpmSampleGet"]
    assert [library.sample(0).sm_active_fraction is None for _ in range(2)] == [True, False]


def test_a_binding_without_the_structure_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeNvml, "c_nvmlGpmMetricsGet_t")
    monkeypatch.delattr("pynvml.c_nvmlGpmMetricsGet_t")
    library = Nvml(FakeNvml(), wall_clock=lambda: 5.0)
    library.sample(0)
    expected = gpu_sample(0).sm_active_fraction
    assert library.sample(0).sm_active_fraction is expected
